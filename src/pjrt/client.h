// Running programs on the devices of a PJRT plug-in. Arrays are dense and row-major on the host.
//
// A training loop keeps its state on the devices: execute takes and returns Buffers, and an argument that the
// program marks with tf.aliasing_output or jax.buffer_donor gives its memory to an output (the Buffer is then
// deleted()).
//
// Client, Executable and Buffer share the plug-in's client: it lives until the last of them is gone, in any
// order. Different threads may use one Client or Executable at once; a Buffer is used by one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "pjrt/options.h"
#include "pjrt/plugin.h"
#include "pjrt/program.h"

struct PJRT_Buffer;
struct PJRT_LoadedExecutable;

namespace lignum::pjrt {

struct ClientState;

// An array of the caller's; data holds the product of dims elements and is read only during the call.
struct HostView {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  const void* data = nullptr;
};

struct HostArray {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  std::vector<std::byte> data;

  int64_t size() const;  // elements
  HostView view() const { return {dtype, dims, data.data()}; }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }
};

// An array on one device. Move-only; freed with the handle.
class Buffer {
 public:
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  int64_t bytes() const;  // of the dense host form

  // Given to an output of an execution: its contents are gone.
  bool deleted() const;

  // Waits for the producer, copies to the host.
  Result<HostArray> fetch() const;
  Status fetch_into(std::span<std::byte> out) const;  // out has exactly bytes() bytes

 private:
  friend class Client;
  friend class Executable;
  struct Free {
    std::shared_ptr<const ClientState> client;
    void operator()(PJRT_Buffer*) const;
  };
  Buffer(std::shared_ptr<const ClientState> client, PJRT_Buffer* buffer)
      : buffer_(buffer, Free{std::move(client)}) {}
  Status read_type();

  std::unique_ptr<PJRT_Buffer, Free> buffer_;
  DType dtype_ = DType::f32;
  std::vector<int64_t> dims_;
};

// A program loaded on its devices.
class Executable {
 public:
  // Devices that take part, in the order of arguments and results: replica-major, as
  // CompileOptions::device_ids.
  int num_devices() const { return static_cast<int>(devices_.size()); }
  int device(int i) const { return devices_[i]; }  // the index to Client::upload to
  int64_t num_outputs() const { return num_outputs_; }

  // arguments[device][argument] -> results[device][output]. Returns when all devices are done; a failure on
  // any device is the Status. Arguments in keep (indices) are not donated, whatever the program allows.
  Result<std::vector<std::vector<Buffer>>> execute(const std::vector<std::vector<const Buffer*>>& arguments,
                                                   const std::vector<int64_t>& keep = {}) const;

  // The same from and to host memory.
  Result<std::vector<std::vector<HostArray>>> run(const std::vector<std::vector<HostView>>& arguments) const;

  const CompiledProgram& program() const { return program_; }

 private:
  friend class Client;
  Executable(std::shared_ptr<const ClientState> client, std::shared_ptr<PJRT_LoadedExecutable> executable,
             CompiledProgram program)
      : client_(std::move(client)), executable_(std::move(executable)), program_(std::move(program)) {}

  std::shared_ptr<const ClientState> client_;
  std::shared_ptr<PJRT_LoadedExecutable> executable_;
  CompiledProgram program_;
  std::vector<int> devices_;
  int64_t num_outputs_ = 0;
};

struct ClientOptions {
  int cpu_device_count = 0;  // virtual devices of the CPU plug-in; 0: not passed on, the plug-in's default
};

class Client {
 public:
  // libtpu without a TPU: a user error with its words.
  static Result<Client> create(const Plugin&, const ClientOptions& = {});

  const Plugin& plugin() const;
  std::string platform() const;                           // "cpu", "tpu", ...
  const std::vector<DeviceDescription>& devices() const;  // those of this process

  Result<Executable> compile(std::string_view stablehlo, const CompileOptions&) const;
  // device: an index into devices(). Returns when the host data has been read.
  Result<Buffer> upload(int device, const HostView&) const;

 private:
  friend class Executable;
  explicit Client(std::shared_ptr<const ClientState> state) : state_(std::move(state)) {}
  std::shared_ptr<const ClientState> state_;
};

}  // namespace lignum::pjrt
