// Points handed out over the processes of an MPI job (mpirun, srun).
#pragma once

#include "sim/search/workers.hpp"

namespace oomcast::search {

// MPI is initialised, and funnelled through the thread that made this. Process 0 leads: it hands
// out runs of points as others ask for them, computes beside that, and alone sees results. A
// process that dies takes the job with it; what the leader was told of is not lost.
class MpiWorkers final : public Workers {
 public:
  MpiWorkers();

  [[nodiscard]] bool leads() const override { return rank_ == 0; }
  void run(const PointBase& base, const std::vector<std::size_t>& points,
           const SettingsOf& settings_of, const Done& done) override;
  void serve(const PointBase& base, const SettingsOf& settings_of) override;
  // Others wait for the leader as long as it has not run.
  [[nodiscard]] bool has_run() const { return has_run_; }

 private:
  bool has_run_ = false;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace oomcast::search
