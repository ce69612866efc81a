// liblignum_mpi.so: comm/mpi_interface.h on an MPI. All of MPI that Lignum uses is in this file.
#include <mpi.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "comm/mpi_interface.h"

namespace {

// Our own, so that what probe() finds is never a message of somebody else in this process.
MPI_Comm comm = MPI_COMM_NULL;
char error_text[MPI_MAX_ERROR_STRING + 64] = "";
char library_text[MPI_MAX_LIBRARY_VERSION_STRING] = "";

int fail(const char* call, const char* why) {
  std::snprintf(error_text, sizeof error_text, "%s: %s", call, why);
  return -1;
}

int check(const char* call, int code) {
  if (code == MPI_SUCCESS) return 0;
  char why[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, why, &length);
  return fail(call, why);
}

static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a handle holds it");

MPI_Request load(const LignumMpiRequest* request) {
  MPI_Request r;
  std::memcpy(&r, &request->handle, sizeof r);
  return r;
}
void store(LignumMpiRequest* request, MPI_Request r) {
  std::memcpy(&request->handle, &r, sizeof r);
  request->active = r == MPI_REQUEST_NULL ? 0 : 1;
}

// MPICH removes the name of its shared memory when it finalises: a rank that is killed would leave it in
// /dev/shm. Once every rank has it mapped, the name serves nobody.
void unlink_shared_memory() {
  const std::string folder = "/dev/shm/mpich_shm_";
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    const size_t at = line.find(folder);
    if (at != std::string::npos && line.find(" (deleted)") == std::string::npos) ::unlink(line.c_str() + at);
  }
}

int init(void*, int* rank, int* size) {
  int provided = 0;
  if (check("MPI_Init_thread", MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided)) != 0)
    return -1;
  if (provided < MPI_THREAD_SERIALIZED) {
    return fail("MPI_Init_thread", "this MPI has no MPI_THREAD_SERIALIZED");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (check("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &comm)) != 0) return -1;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, rank);
  MPI_Comm_size(comm, size);
  if (check("MPI_Barrier", MPI_Barrier(comm)) != 0) return -1;
  unlink_shared_memory();
  int length = 0;
  MPI_Get_library_version(library_text, &length);
  if (char* end = std::strchr(library_text, '\n')) *end = '\0';
  return 0;
}

int ranks_here(void*, int* count) {
  MPI_Comm here = MPI_COMM_NULL;
  if (check("MPI_Comm_split_type",
            MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here)) != 0) {
    return -1;
  }
  MPI_Comm_size(here, count);
  return check("MPI_Comm_free", MPI_Comm_free(&here));
}

int finalize(void*) {
  MPI_Comm_free(&comm);
  return check("MPI_Finalize", MPI_Finalize());
}

int send(void*, const void* data, int64_t bytes, int to, int tag, LignumMpiRequest* request) {
  if (bytes < 0 || bytes > INT_MAX) return fail("send", "a message has 0 to 2^31 - 1 bytes");
  MPI_Request r = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm, &r);
  store(request, r);
  return check("MPI_Isend", code);
}

int receive(void*, void* data, int64_t bytes, int from, int tag, LignumMpiRequest* request) {
  if (bytes < 0 || bytes > INT_MAX) return fail("receive", "a message has 0 to 2^31 - 1 bytes");
  MPI_Request r = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm, &r);
  store(request, r);
  return check("MPI_Irecv", code);
}

int test(void*, LignumMpiRequest* request, int* done) {
  *done = 1;
  if (request->active == 0) return 0;
  MPI_Request r = load(request);
  const int code = MPI_Test(&r, done, MPI_STATUS_IGNORE);
  store(request, r);
  return check("MPI_Test", code);
}

int cancel(void*, LignumMpiRequest* request) {
  if (request->active == 0) return 0;
  MPI_Request r = load(request);
  return check("MPI_Cancel", MPI_Cancel(&r));
}

int probe(void*, int tag, int* from, int64_t* bytes) {
  int found = 0;
  MPI_Status status;
  *from = -1;
  if (check("MPI_Iprobe", MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &found, &status)) != 0) return -1;
  if (found == 0) return 0;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *bytes = count;
  return 0;
}

const LignumMpi kInterface = {
    LIGNUM_MPI_VERSION,
    sizeof(LignumMpi),
    nullptr,
    [](void*) { return static_cast<const char*>(error_text); },
    [](void*) { return static_cast<const char*>(library_text); },
    init,
    ranks_here,
    finalize,
    send,
    receive,
    test,
    cancel,
    probe,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const LignumMpi* lignum_mpi() { return &kInterface; }
