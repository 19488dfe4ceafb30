// SPDX-License-Identifier: Apache-2.0
// A plain MPI program that the launcher's tests start: mpi_ranks hello|early|away|abort|crash|exit|unfinished|hang
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hello(int rank, int size) {
  int sum = 0, thread = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Query_thread(&thread);
  printf("rank %d of %d, sum %d, thread multiple %s\n", rank, size, sum, thread == MPI_THREAD_MULTIPLE ? "yes" : "no");
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "hello";
  int provided = 0, rank = 0, size = 0;
  const char* started = getenv("RANK");  // unset under mpirun
  const int last_started = started != NULL && atoi(started) == atoi(getenv("WORLD_SIZE")) - 1;
  if (last_started && strcmp(what, "early") == 0) return 0;
  if (last_started && strcmp(what, "away") == 0) sleep(1000);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int last = rank == size - 1;
  hello(rank, size);
  fflush(stdout);
  if (last && strcmp(what, "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 7);
  if (last && strcmp(what, "crash") == 0) raise(SIGSEGV);
  if (last && strcmp(what, "exit") == 0) _exit(3);
  if (last && strcmp(what, "unfinished") == 0) _exit(0);
  MPI_Barrier(MPI_COMM_WORLD);  // never returns if the last rank failed
  if (strcmp(what, "hang") == 0) sleep(1000);
  MPI_Finalize();
  return 0;
}
