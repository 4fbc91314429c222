#include "sim/logs/derived.hpp"

#include <initializer_list>

namespace oomcast::logs {
namespace {

class Derivation {
 public:
  Derivation(EngineRun& run, std::size_t rank) : run_(run), rank_(rank) {}

  [[nodiscard]] const Reading* own(Figure figure) const { return run_.find(figure, rank_); }

  // figure = sum of the terms that are there; the first must be.
  void sum(Figure figure, std::initializer_list<Figure> terms) { combine(figure, terms, {}); }
  void difference(Figure figure, Figure from, Figure less) {
    if (own(less) != nullptr) {
      combine(figure, {from}, {less});
    }
  }
  void product(Figure figure, Figure left, Figure right) { scale(figure, left, right, false); }
  void quotient(Figure figure, Figure left, Figure right) { scale(figure, left, right, true); }

 private:
  void combine(Figure figure, std::initializer_list<Figure> plus,
               std::initializer_list<Figure> minus) {
    if (own(figure) != nullptr || own(*plus.begin()) == nullptr) {
      return;
    }
    Reading made{figure, rank_, 0, 0, own(*plus.begin())->line, true};
    for (const Figure term : plus) {
      if (const Reading* reading = own(term)) {
        made.value += reading->value;
        made.half_step += reading->half_step;
      }
    }
    for (const Figure term : minus) {
      made.value -= own(term)->value;
      made.half_step += own(term)->half_step;
    }
    run_.readings.push_back(made);
  }

  void scale(Figure figure, Figure left, Figure right, bool divide) {
    const Reading* first = own(left);
    const Reading* second = own(right);
    if (own(figure) != nullptr || first == nullptr || second == nullptr || second->value <= 0) {
      return;
    }
    const double factor = divide ? 1 / second->value : second->value;
    run_.readings.push_back(
        {figure, rank_, first->value * factor, first->half_step * factor, first->line, true});
  }

  EngineRun& run_;
  std::size_t rank_;
};

void derive_sglang(Derivation& derive) {
  derive.sum(Figure::kStatePool, {Figure::kSsmState, Figure::kConvState});
  derive.difference(Figure::kWeights, Figure::kFreeAtStart, Figure::kFreeAfterLoad);
  if (derive.own(Figure::kSwaTokens) != nullptr) {
    derive.sum(Figure::kAvailableKv, {Figure::kKeys, Figure::kValues, Figure::kMoreKv});
  } else {
    derive.sum(Figure::kAvailableKv, {Figure::kKeys, Figure::kValues});
  }
}

// An out-of-memory text names the card's memory.
void total_of_failures(EngineRun& run) {
  if (run.nearest(Figure::kTotal, 0) != nullptr) {
    return;
  }
  for (const Failure& failure : run.failures) {
    if (failure.oom && failure.oom->total) {
      constexpr double kHalfStep = 0.005 * 1073741824.0;
      run.readings.push_back({Figure::kTotal, failure.rank,
                              static_cast<double>(failure.oom->total->count()), kHalfStep,
                              failure.line, true});
      return;
    }
  }
}

}  // namespace

void derive_figures(EngineRun& run) {
  total_of_failures(run);
  if (!run.engine) {
    return;
  }
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    Derivation derive(run, rank);
    switch (*run.engine) {
      case launch::Engine::kVllm:
        derive.quotient(Figure::kTotal, Figure::kRequested, Figure::kUtilization);
        break;
      case launch::Engine::kSglang:
        derive_sglang(derive);
        break;
      case launch::Engine::kTrtllm:
        derive.difference(Figure::kWeights, Figure::kFreeAtStart, Figure::kFreeAfterLoad);
        derive.product(Figure::kKvTokens, Figure::kKvBlocks, Figure::kBlockSize);
        break;
    }
  }
}

}  // namespace oomcast::logs
