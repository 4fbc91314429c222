#include "tests/golden/allocator_check.hpp"

#include <fmt/ranges.h>
#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/allocator/picture.hpp"
#include "sim/core/digest.hpp"
#include "sim/core/json.hpp"
#include "tests/golden/allocator_scenario.hpp"

namespace oomcast::golden {
namespace {

using allocator::Action;
using allocator::AllocatorSettings;
using allocator::BlockHandle;
using allocator::BlockUse;
using allocator::CachingAllocator;
using allocator::PoolId;
using allocator::StreamId;
using allocator::TraceEvent;

constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

// PyTorch releases private pools in the order of a hash table: within a run of releases only the
// order within each pool is compared.
Json by_pool(const Json& actions, const tsl::robin_map<std::int64_t, PoolId>& pool_of) {
  std::vector<Json> sorted(actions.begin(), actions.end());
  const auto pool = [&](const Json& action) {
    const auto found = action.size() > 1 && action[1].is_number_integer()
                           ? pool_of.find(action[1].get<std::int64_t>())
                           : pool_of.end();
    return found == pool_of.end() ? PoolId::kDefault : found->second;
  };
  const auto is_release = [](const Json& action) {
    return action.is_array() && !action.empty() &&
           (action[0] == "free" || action[0] == "unmap" || action[0] == "unreserve");
  };
  auto run = sorted.begin();
  while (run != sorted.end()) {
    const auto end = std::find_if_not(run, sorted.end(), is_release);
    std::stable_sort(run, end,
                     [&](const Json& left, const Json& right) { return pool(left) < pool(right); });
    run = end == sorted.end() ? end : std::next(end);
  }
  return sorted;
}

class Replay {
 public:
  Replay(const AllocatorScenario& scenario, const std::string& file)
      : scenario_(scenario), file_(file), allocator_(scenario.device, scenario.settings) {
    allocator_.trace_to(&trace_);
  }

  // "" or the first difference.
  std::string call(const Json& line, const std::string& place);
  [[nodiscard]] std::int64_t calls() const { return number_; }
  [[nodiscard]] bool last_was_full() const { return last_was_full_; }
  [[nodiscard]] const CachingAllocator& allocator() const { return allocator_; }

 private:
  static constexpr std::int64_t kNoId = -1;

  [[noreturn]] void contradiction(std::string value, std::string expected) const {
    throw ConfigError(Problem{file_, place_, std::move(value), std::move(expected), {}});
  }
  void differs(const std::string& field, const std::string& expected, const std::string& got) {
    if (difference_.empty()) {
      difference_ =
          fmt::format("call {} field {}: expected {}, got {}", number_, field, expected, got);
    }
  }

  std::int64_t integer(const char* key, std::int64_t low = 0, std::int64_t high = kMaxNumber) const;
  [[nodiscard]] StreamId stream() const;
  [[nodiscard]] PoolId pool() const;
  [[nodiscard]] BlockHandle live_block() const;
  [[nodiscard]] PoolId used_pool() const;
  [[nodiscard]] bool flag(bool otherwise) const;

  void perform(const std::string& op);
  void allocate();
  void free();
  void perform_on_pool(const std::string& op);
  void set_conf();
  void snapshot();
  void compare_oom(const Json& recorded);
  void compare_driver();
  void compare_done();
  void compare_stats();
  [[nodiscard]] Json driver_actions() const;

  const AllocatorScenario& scenario_;
  const std::string& file_;
  CachingAllocator allocator_;
  allocator::Trace trace_;
  tsl::robin_map<std::int64_t, BlockHandle> live_;  // by id
  std::vector<bool> is_waiting_;                    // by handle: freed, not yet at its end
  std::vector<std::int64_t> id_of_;                 // by handle
  tsl::robin_set<std::int64_t> used_ids_;
  tsl::robin_map<std::int64_t, PoolId> pool_of_segment_;
  Digest digest_;
  std::int64_t number_ = -1;
  bool last_was_full_ = true;
  std::string place_;
  const Json* line_ = nullptr;
  std::string result_;
  std::string difference_;
};

std::int64_t Replay::integer(const char* key, std::int64_t low, std::int64_t high) const {
  Problems problems;
  const JsonView view(*line_, file_, place_, problems);
  const std::optional<std::int64_t> value = view.integer(key, low, high);
  problems.raise_if_any();
  if (!value) {
    contradiction(line_->dump(-1, ' ', false, Json::error_handler_t::replace),
                  fmt::format("a call with {}", key));
  }
  return *value;
}

StreamId Replay::stream() const {
  return line_->contains("stream") ? StreamId{integer("stream")} : StreamId::kDefault;
}

PoolId Replay::pool() const { return PoolId{integer("pool", 1)}; }

PoolId Replay::used_pool() const {
  const PoolId id = pool();
  if (!allocator_.has_uses(id)) {
    contradiction(fmt::format("pool {}", static_cast<std::int64_t>(id)), "a pool that has uses");
  }
  return id;
}

BlockHandle Replay::live_block() const {
  const std::int64_t id = integer("id");
  const auto found = live_.find(id);
  if (found == live_.end()) {
    contradiction(fmt::format("id {}", id), "the id of an allocation that lives");
  }
  return found->second;
}

bool Replay::flag(bool otherwise) const {
  if (!line_->contains("on")) {
    return otherwise;
  }
  if (!(*line_)["on"].is_boolean()) {
    contradiction((*line_)["on"].dump(), "on: true or false");
  }
  return (*line_)["on"].get<bool>();
}

std::string Replay::call(const Json& line, const std::string& place) {
  ++number_;
  line_ = &line;
  place_ = place;
  result_ = "-";
  difference_.clear();
  trace_.clear();
  if (!line.is_object() || !line.contains("op") || !line["op"].is_string()) {
    contradiction(line.dump(-1, ' ', false, Json::error_handler_t::replace), "a call: op …");
  }
  perform(line["op"].get<std::string>());
  compare_driver();
  compare_stats();
  return difference_;
}

void Replay::perform(const std::string& op) {
  static const std::vector<std::string> kOps = {"alloc",
                                                "free",
                                                "record_stream",
                                                "event_complete",
                                                "empty_cache",
                                                "begin_pool",
                                                "end_pool",
                                                "create_pool",
                                                "release_pool",
                                                "capture_begin",
                                                "capture_end",
                                                "use_on_oom",
                                                "no_split",
                                                "current_stream",
                                                "memory_fraction",
                                                "set_conf",
                                                "reset_peak_stats",
                                                "snapshot"};
  if (op == "alloc") {
    allocate();
  } else if (op == "free") {
    free();
  } else if (op == "record_stream") {
    allocator_.record_stream(live_block(), stream());
  } else if (op == "event_complete") {
    allocator_.complete_events(stream(), line_->contains("count") ? integer("count") : 0);
  } else if (op == "empty_cache") {
    line_->contains("pool") ? allocator_.empty_cache(pool()) : allocator_.empty_cache();
  } else if (op == "capture_begin" || op == "capture_end") {
    const bool begins = op == "capture_begin";
    if (allocator_.is_capturing(stream()) == begins) {
      contradiction(op, begins ? "a stream that is not being captured" : "a captured stream");
    }
    begins ? allocator_.begin_capture(stream()) : allocator_.end_capture(stream());
  } else if (op == "current_stream") {
    allocator_.set_current_stream(stream());
  } else if (op == "memory_fraction") {
    Problems problems;
    const std::optional<double> fraction =
        JsonView(*line_, file_, place_, problems).number("fraction");
    problems.raise_if_any();
    if (!fraction || *fraction < 0 || *fraction > 1) {
      contradiction((*line_).dump(), "a fraction from 0 to 1");
    }
    allocator_.set_memory_fraction(*fraction);
  } else if (op == "set_conf") {
    set_conf();
  } else if (op == "reset_peak_stats") {
    allocator_.reset_peaks();
  } else if (op == "snapshot") {
    snapshot();
  } else if (std::find(kOps.begin(), kOps.end(), op) != kOps.end()) {
    perform_on_pool(op);
  } else {
    throw ConfigError(Problem{file_, place_, op, "a known op", did_you_mean(op, kOps)});
  }
  if (op != "alloc") {
    compare_done();
  }
}

void Replay::perform_on_pool(const std::string& op) {
  const PoolId id = pool();
  if (op == "use_on_oom") {
    allocator_.set_use_on_oom(id, flag(true));
  } else if (op == "no_split") {
    allocator_.set_no_split(id, flag(true));
  } else if (op == "end_pool") {
    if (!allocator_.is_routed(id)) {
      contradiction(op, "a pool that allocations go to");
    }
    allocator_.end_pool(id);
  } else if (op == "release_pool") {
    allocator_.release_pool(used_pool());
  } else {
    if (allocator_.exists(id) && !allocator_.has_uses(id)) {
      contradiction(op, "a new pool, or one that has uses");
    }
    if (op == "create_pool") {
      allocator_.create_pool(id);
      return;
    }
    if (allocator_.is_routed(id)) {
      contradiction(op, "a pool that no allocations go to yet");
    }
    const bool any = line_->contains("stream") && (*line_)["stream"].is_null();
    allocator_.begin_pool(id, any ? std::nullopt : std::optional<StreamId>{stream()});
  }
}

void Replay::allocate() {
  const std::int64_t id = integer("id");
  const std::int64_t size = integer("size");
  if (!used_ids_.insert(id).second) {
    contradiction(fmt::format("id {}", id), "an id that was not used before");
  }
  const bool recorded_oom = line_->contains("oom");
  if (recorded_oom == line_->contains("at")) {
    contradiction(line_->dump(), "either at or oom");
  }
  const allocator::Allocation block = allocator_.allocate(Bytes{size}, stream());
  compare_done();  // before the handle of a finished block gets its new owner
  if (!block) {
    result_ = "oom";
    if (recorded_oom) {
      compare_oom((*line_)["oom"]);
    } else {
      differs("at", (*line_)["at"].dump(), "oom: " + allocator_.last_oom().message());
    }
    return;
  }
  Json at;
  if (*block == BlockHandle::kNull) {
    result_ = "null";
  } else {
    const auto [segment, offset] = allocator_.place(*block);
    at = Json::array({segment, offset.count()});
    result_ = fmt::format("{}+{}", segment, offset.count());
    const auto index = static_cast<std::size_t>(*block);
    if (index >= id_of_.size()) {
      id_of_.resize(index + 1, kNoId);
      is_waiting_.resize(index + 1, false);
    }
    id_of_[index] = id;
    live_[id] = *block;
    const std::int64_t recorded_pool = line_->contains("pool") ? integer("pool") : 0;
    const auto our_pool = static_cast<std::int64_t>(allocator_.pool(*block));
    if (recorded_pool != our_pool) {
      differs("pool", std::to_string(recorded_pool), std::to_string(our_pool));
    }
  }
  if (recorded_oom) {
    differs("oom", (*line_)["oom"].dump(), "at " + at.dump());
  } else if (at != (*line_)["at"]) {
    differs("at", (*line_)["at"].dump(), at.dump());
  }
}

void Replay::free() {
  const BlockHandle block = live_block();
  live_.erase(integer("id"));
  allocator_.free(block);
  const bool completed = std::any_of(trace_.begin(), trace_.end(), [&](const TraceEvent& event) {
    return event.action == Action::kFreeCompleted && event.block == block;
  });
  is_waiting_[static_cast<std::size_t>(block)] = !completed;
}

void Replay::set_conf() {
  Problems problems;
  const JsonView view(*line_, file_, place_, problems);
  const std::optional<std::string> conf = view.text("conf");
  AllocatorSettings settings = allocator_.settings();
  std::vector<std::string> warnings;
  apply_allocator_conf(conf.value_or(""), file_ + ": " + place_, settings, problems, warnings);
  problems.raise_if_any();
  allocator_.set_settings(settings);
}

void Replay::compare_oom(const Json& recorded) {
  const allocator::OutOfMemory& oom = allocator_.last_oom();
  const bool is_counted = oom.kind == allocator::OutOfMemory::Kind::kExhausted;
  const Json ours = {{"alloc_size", is_counted ? oom.segment.count() : 0},
                     {"limit", is_counted ? oom.limit.count() : 0},
                     {"free", is_counted ? oom.device_free.count() : 0},
                     {"message", oom.message()}};
  for (const auto& [key, value] : ours.items()) {
    const Json expected = recorded.is_object() && recorded.contains(key) ? recorded[key] : Json();
    if (expected != value) {
      differs("oom." + key, expected.dump(), value.dump());
    }
  }
}

void Replay::snapshot() {
  Json ours = Json::array();
  for (const allocator::SegmentSnapshot& segment : allocator_.snapshot()) {
    Json blocks = Json::array();
    for (const allocator::BlockLayout& block : segment.blocks) {
      if (block.use == BlockUse::kFree) {
        blocks.push_back({block.size.count(), "free"});
      } else {
        blocks.push_back({block.size.count(),
                          block.use == BlockUse::kAllocated ? "allocated" : "pending_free",
                          block.requested.count()});
      }
    }
    ours.push_back({{"at", {segment.number, segment.offset.count()}},
                    {"size", segment.size.count()},
                    {"stream", static_cast<std::int64_t>(segment.stream)},
                    {"pool", static_cast<std::int64_t>(segment.pool)},
                    {"type", segment.is_small ? "small" : "large"},
                    {"expandable", segment.is_expandable},
                    {"blocks", std::move(blocks)}});
  }
  const Json recorded = line_->value("segments", Json::array());
  for (std::size_t i = 0; i < std::max(ours.size(), recorded.size()); ++i) {
    const Json expected = i < recorded.size() ? recorded[i] : Json();
    const Json got = i < ours.size() ? ours[i] : Json();
    if (expected != got) {
      differs(fmt::format("segments[{}]", i), expected.dump(), got.dump());
    }
  }
}

Json Replay::driver_actions() const {
  Json actions = Json::array();
  for (const TraceEvent& event : trace_) {
    const auto pages = [&](const char* name) {
      // Neighbouring pages of one kind of call are one entry.
      if (!actions.empty() && actions.back()[0] == name && actions.back()[1] == event.segment &&
          actions.back()[2].get<std::int64_t>() + actions.back()[3].get<std::int64_t>() ==
              event.first_page) {
        actions.back()[3] = actions.back()[3].get<std::int64_t>() + event.pages;
      } else {
        actions.push_back({name, event.segment, event.first_page, event.pages});
      }
    };
    switch (event.action) {
      case Action::kSegmentAlloc:
        actions.push_back({"malloc", event.segment, event.address, event.size.count()});
        break;
      case Action::kMallocFailed:
        actions.push_back({"malloc_fail", event.size.count()});
        break;
      case Action::kSegmentFree:
        actions.push_back({"free", event.segment});
        break;
      case Action::kReserve:
        actions.push_back({"reserve", event.segment, event.address, event.size.count()});
        break;
      case Action::kUnreserve:
        actions.push_back({"unreserve", event.segment});
        break;
      case Action::kCreateFailed:
        actions.push_back({"create_fail", event.size.count()});
        break;
      case Action::kSegmentMap:
        pages("map");
        break;
      case Action::kSegmentUnmap:
        pages("unmap");
        break;
      case Action::kAlloc:
      case Action::kFreeRequested:
      case Action::kFreeCompleted:
      case Action::kOom:
        break;
    }
  }
  return actions;
}

void Replay::compare_driver() {
  const Json expected = line_->value("driver", Json::array());
  if (!expected.is_array()) {
    contradiction(expected.dump(), "driver: a list of actions");
  }
  const Json got = driver_actions();
  for (const TraceEvent& event : trace_) {
    if (event.action == Action::kSegmentAlloc || event.action == Action::kReserve) {
      pool_of_segment_[event.segment] = event.pool;
    }
  }
  if (by_pool(expected, pool_of_segment_) != by_pool(got, pool_of_segment_)) {
    differs("driver", expected.dump(), got.dump());
  }
}

void Replay::compare_done() {
  std::vector<std::int64_t> done;
  for (const TraceEvent& event : trace_) {
    const auto index = static_cast<std::size_t>(event.block);
    if (event.action == Action::kFreeCompleted && is_waiting_[index]) {
      is_waiting_[index] = false;
      done.push_back(id_of_[index]);
    }
  }
  std::sort(done.begin(), done.end());
  const Json expected = line_->value("done", Json::array());
  if (expected != Json(done)) {
    differs("done", expected.dump(), fmt::format("[{}]", fmt::join(done, ",")));
  }
}

void Replay::compare_stats() {
  std::vector<std::int64_t> values;
  for (const StatName* each : scenario_.stats) {
    values.push_back(each->value(allocator_));
  }
  last_was_full_ = line_->contains("st");
  if (last_was_full_) {
    const Json& expected = (*line_)["st"];
    if (!expected.is_array() || expected.size() != values.size()) {
      contradiction(expected.dump(), fmt::format("st: {} numbers", values.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (expected[i] != values[i]) {
        differs(scenario_.stats[i]->name, expected[i].dump(), std::to_string(values[i]));
      }
    }
  }
  digest_.add(fmt::format("{};{};{}\n", number_, result_, fmt::join(values, ",")));
  const std::string full = digest_.hex();
  const Json recorded = line_->value("h", Json());
  const std::size_t digits =
      recorded.is_string() ? recorded.get_ref<const std::string&>().size() : 0;
  if (digits != 4 && digits != full.size()) {
    contradiction(recorded.dump(), "h: 4 or 16 hexadecimal digits");
  }
  const std::string ours = full.substr(full.size() - digits);
  if (recorded != ours) {
    differs("h", recorded.dump(), ours);
  }
}

}  // namespace

std::string check_allocator_recording(workloads::LineReader& in, std::string* picture) {
  std::string_view line;
  const auto parse = [&] {
    try {
      return parse_json(line, in.name());
    } catch (const ConfigError& error) {
      Problem problem = error.problems().front();
      problem.place = in.place() + ", " + problem.place;
      throw ConfigError(problem);
    }
  };
  if (!in.next(line)) {
    throw ConfigError(Problem{in.name(), "", "an empty file", "a recording", {}});
  }
  const AllocatorScenario scenario = read_allocator_scenario(parse(), in.name());
  Replay replay(scenario, in.name());
  while (in.next(line)) {
    std::string difference = replay.call(parse(), in.place());
    if (!difference.empty()) {
      if (picture != nullptr) {
        *picture = allocator::draw_address_space(replay.allocator(), 96);
      }
      return difference;
    }
  }
  if (replay.calls() < 0 || !replay.last_was_full()) {
    throw ConfigError(Problem{in.name(),
                              in.place(),
                              "the end of the file",
                              "a last call with all statistics: the recording was cut off",
                              {}});
  }
  return "";
}

}  // namespace oomcast::golden
