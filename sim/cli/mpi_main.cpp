// The same program as one of the processes of an MPI job: sweeps are shared among them.
#include <mpi.h>

#include <cstdio>

#include "sim/cli/command.hpp"
#include "sim/search/mpi_workers.hpp"

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int code = oomcast::cli::kBug;
  {
    oomcast::search::MpiWorkers workers;
    oomcast::cli::other_workers() = &workers;
    if (!workers.leads()) {
      // What there is to say, the leader says.
      for (std::FILE* stream : {stdout, stderr}) {
        if (std::freopen("/dev/null", "w", stream) == nullptr) {
          MPI_Abort(MPI_COMM_WORLD, code);
        }
      }
    }
    code = oomcast::cli::run_program(argc, argv);
    if (workers.leads() && !workers.has_run() && code != oomcast::cli::kFits) {
      MPI_Abort(MPI_COMM_WORLD, code);
    }
  }
  MPI_Finalize();
  return code;
}
