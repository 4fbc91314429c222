#include "sim/run/sglang_hicache.hpp"

namespace oomcast {

HostCopies::Copy SglangHicache::copy_of(std::int64_t job, Tokens tokens) const {
  const Bytes link = pool_.token * tokens.count();
  return {job, link, link * pool_.ranks};
}

// Copies that the scheduler waited for itself are not known to it.
void SglangHicache::report() {
  for (const HostCopies::Job job : copies_.over()) {
    scheduler_.copy_done(job);
  }
  copies_.clear_over();
}

void SglangHicache::note(const sglang::StepPlan& plan) {
  const sglang::HostPlan& host = plan.host;
  if (host.write) {
    copies_.store_at_start(copy_of(host.write->job, host.write->tokens));
  }
  if (host.awaited > Tokens{0}) {
    const std::int64_t job = --awaited_;  // apart from the scheduler's numbers
    copies_.store_at_start(copy_of(job, host.awaited));
    copies_.flush(job);
  }
  if (host.load) {
    copies_.load_by_layer(copy_of(host.load->job, host.load->tokens), host.load->tokens,
                          pool_.layers);
  }
  hold();
}

void SglangHicache::note(const sglang::StepOutput& output) {
  if (output.write) {
    copies_.store(copy_of(output.write->job, output.write->tokens));
  }
  hold();
}

// Results change it too, and like rounds may follow at once.
void SglangHicache::hold() {
  const Bytes used = pool_.token * scheduler_.host_used().count();
  copies_.hold(used * pool_.ranks, used);
}

}  // namespace oomcast
