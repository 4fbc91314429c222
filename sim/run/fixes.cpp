#include "sim/run/fixes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

class Search {
 public:
  explicit Search(const Plan& failed) : deployment_(failed.deployment()), room_(room(failed)) {}

  std::vector<Fix> run() {
    for (const Knob& knob : deployment_.knobs()) {
      turn(knob);
    }
    return std::move(fixes_);
  }

 private:
  void turn(const Knob& knob) {
    switch (knob.kind) {
      case Knob::Kind::kLess:
        return less(knob);
      case Knob::Kind::kLonger:
        return longest(knob);
      case Knob::Kind::kFraction:
        return fraction(knob);
      case Knob::Kind::kSwitch:
        attempt(knob.flag, "true", "--" + knob.flag);
        return;
      case Knob::Kind::kValue:
        attempt(knob.flag, knob.value);
        return;
      case Knob::Kind::kCards:
        return more_cards(knob);
    }
  }

  // KV room and free memory of the tightest rank: what a change is measured by.
  static Bytes room(const Plan& plan) {
    const Bytes kv = plan.report().available_kv.value_or(Bytes{0});
    Bytes missing;
    for (const RankState* rank : plan.ranks()) {
      missing = std::min(missing, rank->memory.ledger().device_free());
    }
    return kv + missing;
  }

  // The startup with one flag changed, if it then serves.
  std::optional<Plan> serves(const std::string& flag, const std::string& value) const {
    try {
      launch::Launch changed = deployment_.launch;
      launch::set_flag(changed, flag, value);
      Plan plan = start(resolve_again(deployment_, std::move(changed)));
      if (plan.outcome().fits()) {
        return plan;
      }
    } catch (const ConfigError&) {
      // The engine refuses this value; it is no fix.
    }
    return std::nullopt;
  }

  bool attempt(const std::string& flag, const std::string& value, std::string shown) {
    const auto plan = serves(flag, value);
    if (!plan) {
      return false;
    }
    fixes_.push_back({std::move(shown), std::max(Bytes{0}, room(*plan) - room_)});
    return true;
  }
  bool attempt(const std::string& flag, const std::string& value) {
    return attempt(flag, value, fmt::format("--{} {}", flag, value));
  }

  // In whole blocks of 1024 tokens.
  void longest(const Knob& knob) {
    constexpr std::int64_t kStep = 1024;
    const auto now = static_cast<std::int64_t>(knob.now);
    std::int64_t low = 0;
    std::int64_t high = now / kStep;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (serves(knob.flag, std::to_string(middle * kStep))) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low > 0 && low * kStep < now) {
      attempt(knob.flag, std::to_string(low * kStep));
    }
  }

  // Up for a small KV cache, down when the memory beside it ran out.
  void fraction(const Knob& knob) {
    constexpr int kMost = 97;
    constexpr int kLeast = 50;
    const int now = static_cast<int>(knob.now * 100);
    for (int percent = now + 1; percent <= kMost; ++percent) {
      if (attempt(knob.flag, fmt::format("0.{:02}", percent))) {
        return;
      }
    }
    for (int percent = now - 1; percent >= kLeast; --percent) {
      if (attempt(knob.flag, fmt::format("0.{:02}", percent))) {
        return;
      }
    }
  }

  void less(const Knob& knob) {
    const auto least = std::max<std::int64_t>(static_cast<std::int64_t>(knob.least), 1);
    for (auto value = static_cast<std::int64_t>(knob.now) / 2; value >= least; value /= 2) {
      if (attempt(knob.flag, std::to_string(value))) {
        return;
      }
    }
  }

  void more_cards(const Knob& knob) {
    constexpr int kMost = 8;
    for (int cards = static_cast<int>(knob.now) * 2; cards <= kMost; cards *= 2) {
      if (attempt(knob.flag, std::to_string(cards))) {
        return;
      }
    }
  }

  const EngineDeployment& deployment_;
  Bytes room_;
  std::vector<Fix> fixes_;
};

// Tries changes by running the workload again.
class RuntimeSearch {
 public:
  using Restart = std::function<std::unique_ptr<workloads::RequestStream>()>;

  RuntimeSearch(const EngineDeployment& deployment, const RunRecord& failed,
                const StepTimeModel& model, const Restart& restart, const ReplayOptions& options)
      : deployment_(deployment), failed_(failed), model_(model), restart_(restart) {
    options_.detail = options.detail;
    options_.stop = options.stop;
  }

  std::vector<Fix> run() {
    const RankRecord& rank = rank_of(failed_);
    if (rank.allocator && rank.allocator->failure && rank.allocator->failure->is_fragmented()) {
      allocator_settings();
    }
    for (const Knob& knob : deployment_.knobs()) {
      if (knob.kind == Knob::Kind::kFraction) {
        smaller_share(knob);
      }
    }
    return std::move(fixes_);
  }

 private:
  [[nodiscard]] const RankRecord& rank_of(const RunRecord& record) const {
    return record.ranks[static_cast<std::size_t>(*failed_.outcome.rank / deployment_.tp)];
  }

  bool attempt(launch::Launch changed, std::string shown) {
    try {
      class Unread final : public RequestSink {
       public:
        void row(const RequestRow& /*row*/) override {}
      } sink;
      RunRecord record;
      const auto stream = restart_();
      replay(start(resolve_again(deployment_, std::move(changed))), model_, *stream, sink, options_,
             record);
      if (!record.outcome.fits()) {
        return false;
      }
      const RankRecord& before = rank_of(failed_);
      const Bytes wanted = before.device_total + failed_.outcome.short_by;
      const Bytes needed = rank_of(record).device_peak.bytes;
      fixes_.push_back({std::move(shown), std::max(Bytes{0}, wanted - needed)});
      return true;
    } catch (const ConfigError&) {
      return false;  // the engine refuses this value; it is no fix
    }
  }

  // The first that works; PyTorch's message names them in this order.
  void allocator_settings() {
    std::string name(allocator::kConfVariables.front());
    std::string given;
    for (const std::string_view variable : allocator::kConfVariables) {
      if (const auto text = deployment_.launch.variable(variable)) {
        name = variable;
        given = *text + ",";
        break;
      }
    }
    for (const char* setting :
         {"expandable_segments:True", "max_split_size_mb:512", "max_split_size_mb:128"}) {
      launch::Launch changed = deployment_.launch;
      changed.environment[name] = given + setting;
      if (attempt(std::move(changed), name + "=" + given + setting)) {
        return;
      }
    }
  }

  void smaller_share(const Knob& knob) {
    const int percent = static_cast<int>(knob.now * 100);
    for (const int less : {2, 5, 10}) {
      const std::string value = fmt::format("0.{:02}", percent - less);
      if (percent <= less) {
        return;
      }
      launch::Launch changed = deployment_.launch;
      launch::set_flag(changed, knob.flag, value);
      if (attempt(std::move(changed), fmt::format("--{} {}", knob.flag, value))) {
        return;
      }
    }
  }

  const EngineDeployment& deployment_;
  const RunRecord& failed_;
  const StepTimeModel& model_;
  const Restart& restart_;
  ReplayOptions options_;
  std::vector<Fix> fixes_;
};

}  // namespace

std::vector<Fix> find_fixes(const Plan& failed) { return Search(failed).run(); }

std::vector<Fix> find_runtime_fixes(
    const EngineDeployment& deployment, const RunRecord& failed, const StepTimeModel& model,
    const std::function<std::unique_ptr<workloads::RequestStream>()>& restart,
    const ReplayOptions& options) {
  return RuntimeSearch(deployment, failed, model, restart, options).run();
}

}  // namespace oomcast
