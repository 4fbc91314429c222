#include "sim/logs/engine_log.hpp"

#include <algorithm>
#include <cmath>

namespace oomcast::logs {

Bytes Reading::bytes() const { return Bytes{std::llround(value)}; }

const Reading* EngineRun::find(Figure figure, std::size_t rank) const {
  const auto found = std::find_if(readings.begin(), readings.end(), [&](const Reading& reading) {
    return reading.figure == figure && reading.rank == rank;
  });
  return found == readings.end() ? nullptr : &*found;
}

const Reading* EngineRun::nearest(Figure figure, std::size_t rank) const {
  if (const Reading* own = find(figure, rank)) {
    return own;
  }
  if (const Reading* common = find(figure, 0)) {
    return common;
  }
  const auto found = std::find_if(readings.begin(), readings.end(),
                                  [&](const Reading& reading) { return reading.figure == figure; });
  return found == readings.end() ? nullptr : &*found;
}

std::size_t EngineRun::deciding_rank() const {
  const Reading* least = nullptr;
  for (const Reading& reading : readings) {
    if (reading.figure == Figure::kAvailableKv &&
        (least == nullptr || reading.value < least->value)) {
      least = &reading;
    }
  }
  if (least == nullptr && !readings.empty()) {
    least = &readings.front();
  }
  return least == nullptr ? 0 : least->rank;
}

std::optional<Phase> EngineRun::phase() const {
  for (std::size_t i = kPhaseCount; i-- > 0;) {
    if (phase_lines[i] > 0) {
      return static_cast<Phase>(i);
    }
  }
  return std::nullopt;
}

const Failure* EngineRun::cause() const {
  // What names a quantity tells more than a process that only says that it died.
  const auto telling = [](const Failure& failure) {
    return failure.kind == FailureKind::kEngineError ? 0 : 1;
  };
  const Failure* best = nullptr;
  for (const Failure& failure : failures) {
    if (best == nullptr || telling(failure) > telling(*best)) {
      best = &failure;
    }
  }
  return best;
}

}  // namespace oomcast::logs
