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
  Search(const vllm::Deployment& deployment, const vllm::Startup& failed)
      : deployment_(deployment), room_(room(failed)) {}

  std::vector<Fix> run() {
    context_length();
    utilization();
    numbers("max-num-seqs", deployment_.max_num_seqs, 1);
    numbers("max-num-batched-tokens", deployment_.max_num_batched_tokens.count(),
            deployment_.max_num_seqs);
    if (!deployment_.enforce_eager) {
      attempt("enforce-eager", "true", "--enforce-eager");
    }
    const int capability = 10 * deployment_.gpu.compute_major + deployment_.gpu.compute_minor;
    constexpr int kFirstWithFloat8 = 89;
    if (deployment_.kv_dtype != models::DType::kFloat8 && capability >= kFirstWithFloat8) {
      attempt("kv-cache-dtype", "fp8", "--kv-cache-dtype fp8");
    }
    more_cards();
    return std::move(fixes_);
  }

 private:
  // KV room of the tightest rank: what a change is measured by.
  static Bytes room(const vllm::Startup& startup) {
    Bytes least;
    bool first = true;
    for (const vllm::StageState& stage : startup.stages) {
      const Bytes own =
          stage.available_kv + std::min(Bytes{0}, stage.memory.ledger().device_free());
      least = first ? own : std::min(least, own);
      first = false;
    }
    return least;
  }

  // The startup with one flag changed, if it then serves.
  std::optional<vllm::Startup> serves(const std::string& flag, const std::string& value) const {
    try {
      launch::Launch changed = deployment_.launch;
      launch::set_flag(changed, flag, value);
      const vllm::Deployment resolved =
          vllm::resolve(std::move(changed), deployment_.model, deployment_.gpu, deployment_.card,
                        deployment_.assumed);
      vllm::Startup startup = vllm::simulate_startup(resolved);
      if (startup.outcome.fits()) {
        return startup;
      }
    } catch (const ConfigError&) {
      // The engine refuses this value; it is no fix.
    }
    return std::nullopt;
  }

  bool attempt(const std::string& flag, const std::string& value, std::string shown) {
    const auto startup = serves(flag, value);
    if (!startup) {
      return false;
    }
    fixes_.push_back({std::move(shown), std::max(Bytes{0}, room(*startup) - room_)});
    return true;
  }

  // The longest context that fits, in whole blocks of 1024 tokens.
  void context_length() {
    constexpr std::int64_t kStep = 1024;
    std::int64_t low = 0;
    std::int64_t high = deployment_.max_model_len.count() / kStep;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (serves("max-model-len", std::to_string(middle * kStep))) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low > 0 && low * kStep < deployment_.max_model_len.count()) {
      const std::string value = std::to_string(low * kStep);
      attempt("max-model-len", value, "--max-model-len " + value);
    }
  }

  // Up for a small KV cache, down when the memory beside it ran out.
  void utilization() {
    for (int percent = static_cast<int>(deployment_.gpu_memory_utilization * 100) + 1;
         percent <= 97; ++percent) {
      if (attempt_percent(percent)) {
        return;
      }
    }
    for (int percent = static_cast<int>(deployment_.gpu_memory_utilization * 100) - 1;
         percent >= 50; --percent) {
      if (attempt_percent(percent)) {
        return;
      }
    }
  }

  bool attempt_percent(int percent) {
    const std::string value = fmt::format("0.{:02}", percent);
    return attempt("gpu-memory-utilization", value, "--gpu-memory-utilization " + value);
  }

  // Halves a limit until it fits.
  void numbers(const char* flag, std::int64_t value, std::int64_t least) {
    for (value /= 2; value >= std::max<std::int64_t>(least, 1); value /= 2) {
      const std::string text = std::to_string(value);
      if (attempt(flag, text, fmt::format("--{} {}", flag, text))) {
        return;
      }
    }
  }

  void more_cards() {
    constexpr int kMost = 8;
    for (int tp = deployment_.tp * 2; tp <= kMost; tp *= 2) {
      const std::string text = std::to_string(tp);
      if (attempt("tensor-parallel-size", text, "--tensor-parallel-size " + text)) {
        return;
      }
    }
  }

  const vllm::Deployment& deployment_;
  Bytes room_;
  std::vector<Fix> fixes_;
};

// Tries changes by running the workload again.
class RuntimeSearch {
 public:
  using Restart = std::function<std::unique_ptr<workloads::RequestStream>()>;

  RuntimeSearch(const vllm::Deployment& deployment, const RunRecord& failed,
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
    if (!deployment_.kv_cache_memory) {
      utilization();
    }
    return std::move(fixes_);
  }

 private:
  [[nodiscard]] const RankRecord& rank_of(const RunRecord& record) const {
    return record.ranks[static_cast<std::size_t>(*failed_.outcome.rank / deployment_.tp)];
  }

  bool attempt(launch::Launch changed, std::string shown) {
    try {
      const vllm::Deployment resolved =
          vllm::resolve(std::move(changed), deployment_.model, deployment_.gpu, deployment_.card,
                        deployment_.assumed);
      class Unread final : public RequestSink {
       public:
        void row(const RequestRow& /*row*/) override {}
      } sink;
      RunRecord record;
      const auto stream = restart_();
      replay(resolved, vllm::simulate_startup(resolved), model_, *stream, sink, options_, record);
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

  void utilization() {
    const int percent = static_cast<int>(deployment_.gpu_memory_utilization * 100);
    for (const int less : {2, 5, 10}) {
      const std::string value = fmt::format("0.{:02}", percent - less);
      if (percent <= less) {
        return;
      }
      launch::Launch changed = deployment_.launch;
      launch::set_flag(changed, "gpu-memory-utilization", value);
      if (attempt(std::move(changed), "--gpu-memory-utilization " + value)) {
        return;
      }
    }
  }

  const vllm::Deployment& deployment_;
  const RunRecord& failed_;
  const StepTimeModel& model_;
  const Restart& restart_;
  ReplayOptions options_;
  std::vector<Fix> fixes_;
};

}  // namespace

std::vector<Fix> find_fixes(const vllm::Deployment& deployment, const vllm::Startup& failed) {
  return Search(deployment, failed).run();
}

std::vector<Fix> find_runtime_fixes(
    const vllm::Deployment& deployment, const RunRecord& failed, const StepTimeModel& model,
    const std::function<std::unique_ptr<workloads::RequestStream>()>& restart,
    const ReplayOptions& options) {
  return RuntimeSearch(deployment, failed, model, restart, options).run();
}

}  // namespace oomcast
