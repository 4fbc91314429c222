#include "sim/run/allocator_steps.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/startup_tag.hpp"

namespace oomcast {
namespace {

// A state weighs some hundred kilobytes, an effect half of one.
constexpr std::size_t kMostStates = 64;
constexpr std::size_t kMostEffects = std::size_t{1} << 14;

StepMoment idle(const allocator::CachingAllocator& torch) {
  StepMoment moment;
  moment.allocated = torch.stats().allocated;
  moment.reserved = torch.stats().reserved;
  moment.inactive_split = torch.stats().inactive_split;
  moment.segments = torch.stats().segments;
  moment.device_free = torch.device().free();
  return moment;
}

}  // namespace

AllocatorSteps::AllocatorSteps(const vllm::Deployment& deployment, vllm::StageState& stage,
                               Blocks blocks, bool remembers)
    : deployment_(deployment),
      stage_(stage),
      blocks_(blocks),
      // Garbage collection counts searches, so that no state comes back.
      remembers_(remembers && stage.memory.torch().settings().garbage_collection_threshold == 0),
      player_(deployment, stage.stage),
      torch_(stage.memory.torch()),
      booked_(idle(torch_)),
      highest_reserved_(torch_.stats().reserved_peak),
      history_(torch_) {
  for (const PhaseRecord& phase : stage.phases) {
    highest_reserved_ = std::max(highest_reserved_, phase.views.torch_reserved);
  }
  shown_.front() = shown_now();
  if (remembers_) {
    forget();
  }
}

std::size_t AllocatorSteps::KeyHash::operator()(const Key& key) const {
  return mix64(mix64(mix64(key.state) ^ static_cast<std::uint64_t>(key.tokens)) ^
               static_cast<std::uint64_t>(key.rows));
}

std::optional<std::uint32_t> AllocatorSteps::find(Tokens tokens, std::int64_t rows) const {
  const auto found = known_.find({state_, tokens.count(), rows});
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

bool AllocatorSteps::repeats(Tokens tokens, std::int64_t rows) const {
  const auto known = find(tokens, rows);
  return known && effects_[*known].next == state_;
}

std::optional<Outcome> AllocatorSteps::run(const StepRun& steps) {
  const std::optional<std::uint32_t> known = find(steps.tokens, steps.rows);
  OOMCAST_CHECK(steps.steps == 1 || (known && effects_[*known].next == state_),
                "{} steps of {} tokens at once", steps.steps, steps.tokens.count());
  if (known) {
    take(effects_[*known], steps, known);
    return std::nullopt;
  }
  if (remembers_ && (states_.size() >= kMostStates || effects_.size() >= kMostEffects)) {
    forget();
  }
  const Key key{state_, steps.tokens.count(), steps.rows};
  const Effect effect = play(steps);
  if (effect.played.failed) {
    take(effect, steps, std::nullopt);
    return out_of_memory(steps, *effect.played.failed);
  }
  std::optional<std::uint32_t> place;
  if (remembers_) {
    place = static_cast<std::uint32_t>(effects_.size());
    effects_.push_back(effect);
    known_.emplace(key, *place);
  }
  take(effect, steps, place);
  return std::nullopt;
}

AllocatorSteps::Effect AllocatorSteps::play(const StepRun& steps) {
  torch();
  const allocator::AllocatorStats before = torch_.stats();
  Effect effect;
  effect.played = player_.play(steps.tokens, steps.rows, torch_, kFirstStepTag);
  const allocator::AllocatorStats& after = torch_.stats();
  effect.counts = {after.alloc_retries - before.alloc_retries,
                   after.device_allocs - before.device_allocs,
                   after.device_frees - before.device_frees};
  effect.next = state_;
  if (remembers_ && !effect.played.failed && effect.counts != Counts{}) {
    effect.next = state_now();
  }
  torch_state_ = effect.next;
  return effect;
}

// The number of the state in which torch_ stands.
std::uint32_t AllocatorSteps::state_now() {
  const std::uint64_t digest = torch_.state_digest();
  const auto known = std::find_if(states_.begin(), states_.end(),
                                  [&](const State& state) { return state.digest == digest; });
  if (known != states_.end()) {
    return static_cast<std::uint32_t>(known - states_.begin());
  }
  states_.push_back({digest, std::make_unique<const allocator::CachingAllocator>(torch_)});
  return static_cast<std::uint32_t>(states_.size() - 1);
}

const allocator::CachingAllocator& AllocatorSteps::torch() {
  if (torch_state_ != state_) {
    torch_ = *states_[state_].allocator;
    torch_state_ = state_;
  }
  return torch_;
}

void AllocatorSteps::forget() {
  torch();
  states_.clear();
  effects_.clear();
  known_.clear();
  shown_effect_.reset();
  state_ = torch_state_ = state_now();
}

// The run moves on by steps whose effect is known; `place`: where it is remembered.
void AllocatorSteps::take(const Effect& effect, const StepRun& steps,
                          std::optional<std::uint32_t> place) {
  state_ = effect.next;
  counts_.retries += effect.counts.retries * steps.steps;
  counts_.device_allocs += effect.counts.device_allocs * steps.steps;
  counts_.device_frees += effect.counts.device_frees * steps.steps;
  history_.add(steps, effect.played.calls,
               [this]() -> const allocator::CachingAllocator& { return torch(); });
  if (place && place == shown_effect_) {
    return;
  }
  shown_effect_ = place;
  shown_count_ = effect.played.moment_count;
  for (std::size_t i = 0; i < shown_count_; ++i) {
    book(effect.played.moments[i], steps.start_of(0));
    shown_[i] = shown_now();
  }
}

AllocatorSteps::Shown AllocatorSteps::shown_now() const {
  const Ledger& ledger = stage_.memory.ledger();
  return {ledger.device_by_leaf(), ledger.views(), {booked_.inactive_split, booked_.segments}};
}

// Moves the books to `moment` in the order in which no account runs dry, and holds what they have
// left against the driver.
void AllocatorSteps::book(const StepMoment& moment, SimTime at) {
  Ledger& ledger = stage_.memory.ledger();
  const Account free = Account::free_of(Backing::kSegment);
  const Account cached = Account::cell(Leaf::kSystemCached, Backing::kSegment);
  LeafBytes change{};
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    change[leaf] = moment.tensors[leaf] - booked_.tensors[leaf];
  }
  change[index_of(Leaf::kSystemFragmentation)] +=
      moment.beyond - booked_.beyond + moment.inactive_split - booked_.inactive_split;
  const Bytes reserved = moment.reserved - booked_.reserved;
  if (reserved > Bytes{}) {
    ledger.transfer(free, cached, reserved);
  }
  for (const bool takes : {false, true}) {
    for (std::size_t i = 0; i < kLeafCount; ++i) {
      const Account leaf = Account::cell(static_cast<Leaf>(i), Backing::kSegment);
      if (takes && change[i] > Bytes{}) {
        ledger.transfer(cached, leaf, change[i]);
      } else if (!takes && change[i] < Bytes{}) {
        ledger.transfer(leaf, cached, -change[i]);
      }
    }
  }
  if (reserved < Bytes{}) {
    ledger.transfer(cached, free, -reserved);
  }
  ledger.set_torch_idle(moment.reserved - moment.allocated -
                        ledger.at(Leaf::kSystemCached, Backing::kSegment));
  OOMCAST_CHECK(ledger.device_free() == moment.device_free,
                "the books have {} B free, the driver {} B", ledger.device_free().count(),
                moment.device_free.count());
  booked_ = moment;
  stage_.peaks.observe(ledger, at, "serving");
  if (moment.reserved > highest_reserved_) {
    highest_reserved_ = moment.reserved;
    highest_reserved_at_ = at;
  }
}

Outcome AllocatorSteps::out_of_memory(const StepRun& steps, std::size_t place) {
  const allocator::OutOfMemory& oom = torch_.last_oom();
  const std::size_t way = player_.way(steps.tokens, steps.rows);
  const opgraph::StepShape shape{steps.tokens.count(), steps.rows, steps.rows};
  AllocatorRecord::Failure failure;
  failure.site = player_.site(way, place);
  failure.at = steps.start_of(0);
  failure.tokens = steps.tokens;
  failure.rows = steps.rows;
  failure.requested = oom.requested;
  failure.device_free = oom.device_free;
  failure.cached = oom.reserved - oom.allocated - oom.free_in_private_pools;
  for (const std::size_t alive : player_.live()) {
    failure.live.push_back({player_.site(way, alive), player_.made(way)[alive].bytes.at(shape)});
  }

  Outcome outcome;
  outcome.kind = OutcomeKind::kRuntimeOom;
  outcome.phase = "runtime";
  outcome.rank = stage_.stage * deployment_.tp;
  outcome.leaf = failure.site.leaf;
  outcome.short_by = oom.short_by();
  outcome.message = oom.message();
  outcome.message += fmt::format(
      " [{}: {} for {}, in a step of {} tokens and {} logit rows at {:.3f} s", failure.site.scope,
      failure.site.op, failure.site.tensor, steps.tokens.count(), steps.rows, failure.at.seconds());
  if (failure.is_fragmented()) {
    outcome.message += fmt::format(
        "; memory enough was there, but in pieces: {} in free parts of segments in use and {} "
        "free on the card for a request of {}",
        allocator::format_torch_size(failure.cached),
        allocator::format_torch_size(failure.device_free),
        allocator::format_torch_size(failure.requested));
  }
  outcome.message += "]";
  failure_ = std::move(failure);
  return outcome;
}

void AllocatorSteps::show(std::size_t moment, TimelineRow& row) const {
  const Shown& shown = shown_[moment];
  row.device = shown.device;
  row.views = shown.views;
  row.torch = shown.torch;
}

void AllocatorSteps::finish(RankRecord& record) {
  AllocatorRecord& out = record.allocator.emplace();
  const allocator::AllocatorStats& ready = stage_.memory.torch().stats();
  out.stats = torch().stats();
  // Counters and peaks are no part of a state.
  out.stats.alloc_retries = ready.alloc_retries + counts_.retries;
  out.stats.device_allocs = ready.device_allocs + counts_.device_allocs;
  out.stats.device_frees = ready.device_frees + counts_.device_frees;
  out.stats.ooms = ready.ooms + (failure_ ? 1 : 0);
  out.highest_reserved = highest_reserved_;
  out.highest_reserved_at = highest_reserved_at_;
  out.failure = failure_;
  out.history = history_.replay(deployment_, stage_.stage, blocks_, player_, torch());
}

}  // namespace oomcast
