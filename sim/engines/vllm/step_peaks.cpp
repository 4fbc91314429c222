#include "sim/engines/vllm/step_peaks.hpp"

#include <algorithm>

namespace oomcast::vllm {

StepKind serving_kind(const Deployment& deployment, int stage, Execution execution) {
  return {.execution = execution,
          .sampling = role_of(deployment, stage).last ? Sampling::kRandom : Sampling::kNone,
          .attention = runs_in_graph(execution) ? AttentionRun::kSplits : AttentionRun::kRuns};
}

StepPeaks::StepPeaks(const Deployment& deployment, int stage)
    : uncaptured_(deployment.enforce_eager ? Execution::kEager : Execution::kCompiled),
      piecewise_(has_piecewise(deployment.cudagraph_mode)),
      full_(has_full(deployment.cudagraph_mode)) {
  if (!deployment.capture_sizes.empty()) {
    captured_ = Tokens{deployment.capture_sizes.back()};
  }
  const auto add = [&](Execution execution) {
    const opgraph::Program program(
        step_graph(deployment, stage, serving_kind(deployment, stage, execution)));
    for (const opgraph::Program::Moment& moment : program.envelope()) {
      Moment& own = moments_[index_of(execution)].emplace_back();
      own.live = moment.live;
      std::transform(kStepLeaves.begin(), kStepLeaves.end(), own.by_leaf.begin(),
                     [&](Leaf leaf) { return moment.by_leaf[oomcast::index_of(leaf)]; });
    }
  };
  add(uncaptured_);
  if (captured_ > Tokens{0} && piecewise_) {
    add(Execution::kPiecewiseGraph);
  }
  if (captured_ > Tokens{0} && full_) {
    add(Execution::kFullGraph);
  }
  for (std::size_t requests = 1; requests < of_decodes_.size(); ++requests) {
    of_decodes_[requests] = highest({Tokens{requests}, static_cast<std::int64_t>(requests), true});
  }
}

Execution StepPeaks::execution_of(Tokens tokens, std::int64_t rows) const {
  if (tokens > captured_) {
    return uncaptured_;
  }
  if (full_ && rows == tokens.count()) {
    return Execution::kFullGraph;
  }
  return piecewise_ ? Execution::kPiecewiseGraph : uncaptured_;
}

StepSizes StepPeaks::at(const StepLoad& load, const StepLoad& /*before*/) const {
  const auto rows = static_cast<std::size_t>(load.rows);
  return load.tokens.count() == load.rows && rows > 0 && rows < of_decodes_.size()
             ? of_decodes_[rows]
             : highest(load);
}

StepSizes StepPeaks::highest(const StepLoad& load) const {
  const opgraph::StepShape shape{load.tokens.count(), load.rows, load.rows};
  const Moment* highest = nullptr;
  Bytes most;
  for (const Moment& moment : moments_[index_of(execution_of(load.tokens, load.rows))]) {
    const Bytes live = moment.live.at(shape);
    if (highest == nullptr || live > most) {
      highest = &moment;
      most = live;
    }
  }
  StepSizes sizes{};
  if (highest != nullptr) {
    std::transform(highest->by_leaf.begin(), highest->by_leaf.end(), sizes.begin(),
                   [&](const opgraph::Affine& bytes) { return bytes.at(shape); });
  }
  return sizes;
}

}  // namespace oomcast::vllm
