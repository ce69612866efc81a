/* What lies between lignum and liblignum_mpi.so, the one object that is linked with an MPI (src/mpi): plain
 * C, so that the binary needs no MPI to start and the module may be built by another compiler. It moves bytes
 * and adds nothing up.
 *
 * One thread at a time calls these functions (MPI_THREAD_SERIALIZED); which one may change. Each returns 0,
 * or -1 with a text in error(), which stays valid until the next call. */
#ifndef LIGNUM_COMM_MPI_INTERFACE_H_
#define LIGNUM_COMM_MPI_INTERFACE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change of this file. */
#define LIGNUM_MPI_VERSION 1
/* The name of the one symbol, of type LignumMpiEntry. */
#define LIGNUM_MPI_ENTRY "lignum_mpi"

/* NOLINTBEGIN(modernize-use-using, modernize-redundant-void-arg): C too reads this file. */
/* A message under way. Zero in `active`: none, or one that is done. */
typedef struct LignumMpiRequest {
  uint64_t handle;
  uint32_t active;
} LignumMpiRequest;

typedef struct LignumMpi {
  uint32_t version; /* LIGNUM_MPI_VERSION, of the module */
  uint32_t bytes;   /* sizeof(LignumMpi), of the module */

  void* self; /* what every function takes first */

  const char* (*error)(void* self);
  const char* (*library)(void* self); /* "MPICH Version: 5.0.2", say; after init */

  /* Once a process. Waits for the other processes; after an error of theirs it may not return. */
  int (*init)(void* self, int* rank, int* size);
  /* How many ranks run on this rank's machine, it among them. Every rank calls it, once. */
  int (*ranks_here)(void* self, int* count);
  /* Once, and only where every rank calls it. */
  int (*finalize)(void* self);

  /* Messages between two ranks with one tag (0..32767) arrive in the order of sending. bytes: 0..2^31-1. The
   * buffer is the module's until test() says done. */
  int (*send)(void* self, const void* data, int64_t bytes, int to, int tag, LignumMpiRequest* request);
  int (*receive)(void* self, void* data, int64_t bytes, int from, int tag, LignumMpiRequest* request);
  /* Lets messages move; *done = 1 once this one is, or where none is active. */
  int (*test)(void* self, LignumMpiRequest* request, int* done);
  /* A receive that no message has met is given up; test() says when it is done, either way. */
  int (*cancel)(void* self, LignumMpiRequest* request);
  /* Lets messages move; *from: who has sent a message with this tag that nobody receives yet, -1: nobody. */
  int (*probe)(void* self, int tag, int* from, int64_t* bytes);
} LignumMpi;

typedef const LignumMpi* (*LignumMpiEntry)(void);
/* NOLINTEND(modernize-use-using, modernize-redundant-void-arg) */

#ifdef __cplusplus
}
#endif

#endif /* LIGNUM_COMM_MPI_INTERFACE_H_ */
