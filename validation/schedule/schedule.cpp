#include "validation/schedule/schedule.hpp"

#include <fmt/format.h>

#include <new>
#include <optional>
#include <utility>

#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

using fit::ProbeSample;
using fit::SampleStatus;

constexpr std::int64_t kMebiCount = std::int64_t{1} << 20;

class List {
 public:
  explicit List(std::vector<Measurement>& out) : out_(out) {}
  void add(const char* probe, Settings settings, std::int64_t needs, int warmups, int repeats) {
    out_.push_back({probe, std::move(settings), Bytes{needs}, warmups, repeats});
  }

 private:
  std::vector<Measurement>& out_;
};

// Each in a process of its own: what a context, a library's handle or a module takes shows once.
void add_context(List& list) {
  constexpr std::int64_t kMost = std::int64_t{2} << 30;
  list.add("card", {}, 0, 0, 3);
  for (const std::int64_t kernels : {0, 8, 16, 32, 64, 128}) {
    list.add("context", {{"kernels", kernels}, {"eager", 0}}, kMost, 0, 3);
  }
  list.add("context", {{"kernels", 0}, {"eager", 1}}, kMost, 0, 3);
  list.add("cublas", {}, kMost, 0, 3);
}

void add_driver(List& list, const Card& card) {
  for (const std::int64_t request :
       {std::int64_t{1}, std::int64_t{65'536}, kMebiCount, 2 * kMebiCount, 2 * kMebiCount + 1,
        3 * kMebiCount, 8 * kMebiCount, 20 * kMebiCount, 33 * kMebiCount + 5, 100 * kMebiCount}) {
    list.add("malloc", {{"request", request}}, request + 2 * kMebiCount, 1, 3);
  }
  list.add("vmm", {}, 2 * kMebiCount, 0, 3);
  for (const std::int64_t mebi : {64, 256, 512, 1024}) {
    list.add("pinned", {{"registered", mebi * kMebiCount}}, 64 * kMebiCount, 1, 3);
  }
  for (std::int64_t peers = 1; peers < card.devices; ++peers) {
    list.add("peer", {{"peers", peers}}, 256 * kMebiCount, 1, 3);
  }
}

void add_graphs(List& list) {
  for (const std::int64_t nodes : {4, 16, 64, 256, 1024}) {
    for (const std::int64_t copies : {0, 16, 64}) {
      // Far above the 10 KiB a node and the quarter MiB a graph that were seen.
      const std::int64_t needs = kGraphCopies * ((nodes + copies) * 65'536 + kMebiCount);
      list.add("graph", {{"nodes", nodes}, {"copies", copies}}, needs, 1, 5);
    }
  }
  for (const std::int64_t graphs : {1, 2, 4, 8, 16}) {
    list.add("graph_pool", {{"graphs", graphs}}, (graphs + 1) * kGraphPoolBytes, 1, 3);
  }
}

void add_attention(List& list) {
  constexpr std::int64_t kCacheRow = 2 * kKvHeads * kHeadDim * 2;
  for (const std::int64_t tokens : {8, 64, 256}) {
    for (const std::int64_t splits : {1, 4, 8, 32}) {
      list.add("decode_attention",
               {{"tokens", tokens}, {"splits", splits}, {"token_splits", tokens * splits}},
               tokens * splits * kSplitBytes + tokens * kContext * kCacheRow + 64 * kMebiCount, 1,
               3);
    }
  }
  for (const std::int64_t tokens : {256, 1024, 2048, 4096}) {
    list.add("prefill_attention", {{"tokens", tokens}},
             tokens * (kPrefillSplits * kSplitBytes + 4 * kHeads * kHeadDim) + 64 * kMebiCount, 1,
             3);
  }
}

void add_experts(List& list) {
  for (const std::int64_t rows : {64, 512, 1000, 4096, 16'384, 65'536}) {
    const std::int64_t needs =
        rows * (kPermuteBytes + kExpertRowBytes + 4 * kHidden) + 1024 * kMebiCount;
    for (const char* probe : {"permute", "grouped_gemm", "quantise"}) {
      list.add(probe, {{"rows", rows}}, needs, 1, 3);
    }
  }
}

void add_rates(List& list) {
  // Beyond any second-level cache.
  for (const std::int64_t mebi : {256, 512, 1024, 2048}) {
    list.add("hbm", {{"bytes", mebi * kMebiCount}}, mebi * kMebiCount, 2, 5);
  }
  for (const std::int64_t rows : {1, 256, 2048, 8192}) {
    list.add("gemm", {{"rows", rows}}, (kGemmSide + 2 * rows) * kGemmSide * 2 + 64 * kMebiCount, 3,
             5);
  }
  for (const std::int64_t rows : {1, 16, 256, 2048, 8192}) {
    list.add("cublaslt", {{"rows", rows}}, 64 * kMebiCount, 0, 1);
  }
}

void add_transfers(List& list, const Card& card) {
  for (const std::int64_t tokens : {256, 512, 1024, 2048, 4096, 8192}) {
    list.add("dispatch", {{"tokens", tokens}}, 4 * tokens * kDispatchBytes + 64 * kMebiCount, 1, 3);
  }
  for (const std::int64_t mebi : {1, 4, 16, 64, 256}) {
    list.add("transfer", {{"bytes", mebi * kMebiCount}}, 2 * mebi * kMebiCount, 1, 3);
  }
  if (card.devices > 1) {
    for (const std::int64_t channels : {1, 2, 4, 8, 16}) {
      list.add("nccl", {{"channels", channels}, {"ranks", card.devices}}, std::int64_t{2} << 30, 0,
               3);
    }
  }
}

// Runs them one after another, with what is watched around each.
class Run {
 public:
  Run(Device& device, const RunOptions& options)
      : device_(device), options_(options), started_(device.seconds()) {}

  void measure(const Measurement& measurement) {
    ProbeSample sample;
    sample.probe = measurement.probe;
    sample.settings = measurement.settings;
    if (const auto why = why_not(measurement)) {
      sample.status = SampleStatus::kSkipped;
      sample.note = *why;
      sample.free_before = sample.free_after = device_.use().free;
      samples_.push_back(std::move(sample));
      return;
    }
    for (int warmup = 0; warmup < measurement.warmups; ++warmup) {
      ProbeSample thrown_away = sample;
      if (!repeat(measurement, thrown_away)) {
        samples_.push_back(std::move(thrown_away));
        return;
      }
    }
    for (int i = 0; i < measurement.repeats; ++i) {
      sample.repeat = i;
      const bool goes_on = undisturbed(measurement, sample);
      samples_.push_back(sample);
      if (!goes_on) {
        return;
      }
    }
  }

  [[nodiscard]] std::vector<ProbeSample> take() { return std::move(samples_); }

 private:
  [[nodiscard]] std::optional<std::string> why_not(const Measurement& measurement) {
    if (device_.seconds() - started_ >= options_.seconds) {
      return fmt::format("the limit of {:.0f} s was reached", options_.seconds);
    }
    const auto most = static_cast<double>(device_.use().free.count()) * options_.free_share;
    if (static_cast<double>(measurement.needs.count()) > most) {
      return fmt::format("needs {:.0f} MiB, above {:.0f} % of the free memory",
                         to_mib(measurement.needs), options_.free_share * 100);
    }
    return std::nullopt;
  }

  // Again where something else used the card, a few times.
  bool undisturbed(const Measurement& measurement, ProbeSample& sample) {
    constexpr int kTries = 3;
    for (int i = 0; i < kTries; ++i) {
      if (!repeat(measurement, sample)) {
        return false;
      }
      if (!sample.disturbed) {
        break;
      }
    }
    return true;
  }

  // Whether more of the same makes sense.
  bool repeat(const Measurement& measurement, ProbeSample& sample) {
    const CardUse before = device_.use();
    sample.free_before = before.free;
    sample.status = SampleStatus::kDone;
    sample.note.clear();
    sample.values.clear();
    try {
      sample.values = device_.measure(measurement.probe, measurement.settings);
    } catch (const OutOfMemory& error) {
      sample.status = SampleStatus::kOutOfMemory;
      sample.note = error.what();
    } catch (const std::bad_alloc&) {
      sample.status = SampleStatus::kOutOfMemory;
      sample.note = "the host's memory is short";
    } catch (const Unsupported& error) {
      sample.status = SampleStatus::kUnsupported;
      sample.note = error.what();
    } catch (const DeviceFailure& error) {
      sample.status = SampleStatus::kFailed;
      sample.note = error.what();
    }
    const CardUse after = device_.use();
    sample.free_after = after.free;
    sample.disturbed = after.other_processes != before.other_processes ||
                       after.others_bytes != before.others_bytes;
    return sample.status == SampleStatus::kDone;
  }

  Device& device_;
  const RunOptions& options_;
  double started_;
  std::vector<ProbeSample> samples_;
};

void require_whole_card(const Card& card, const CardUse& use) {
  if (card.mig) {
    throw Unsupported(card.name + " is a part of a card (MIG): use --allow-shared to measure it");
  }
  if (use.other_processes > 0) {
    throw Unsupported(
        fmt::format("{} other processes use {}: use --allow-shared to measure beside "
                    "them",
                    use.other_processes, card.name));
  }
}

}  // namespace

std::vector<Measurement> measurements_for(const Card& card) {
  std::vector<Measurement> out;
  List list(out);
  add_context(list);
  add_driver(list, card);
  add_graphs(list);
  add_attention(list);
  add_experts(list);
  add_rates(list);
  add_transfers(list, card);
  return out;
}

const std::map<std::string, std::int64_t>& probe_versions() {
  static const std::map<std::string, std::int64_t> kVersions = {
      {"card", 1},    {"context", 1},      {"cublas", 1},           {"cublaslt", 1},
      {"malloc", 1},  {"vmm", 1},          {"pinned", 1},           {"peer", 1},
      {"graph", 1},   {"graph_pool", 1},   {"decode_attention", 1}, {"prefill_attention", 1},
      {"permute", 1}, {"grouped_gemm", 1}, {"quantise", 1},         {"hbm", 1},
      {"gemm", 1},    {"dispatch", 1},     {"transfer", 1},         {"nccl", 1}};
  return kVersions;
}

fit::ProbeSamples run_measurements(Device& device, const std::vector<Measurement>& measurements,
                                   const RunOptions& options) {
  const Card card = device.card();
  const CardUse use = device.use();
  if (!options.allow_shared) {
    require_whole_card(card, use);
  }
  fit::ProbeSamples out;
  out.card = {.gpu = card.name,
              .sm_count = card.sm_count,
              .threads_per_sm = card.threads_per_sm,
              .compute_capability = card.compute_capability,
              .total = card.total,
              .free = use.free,
              .mig = card.mig,
              .other_processes = use.other_processes};
  out.driver = card.driver;
  out.cuda = card.cuda;
  out.date = options.date;
  out.versions = probe_versions();
  out.left_out = device.left_out();
  Run run(device, options);
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    try {
      run.measure(measurements[i]);
    } catch (const DeviceFailure& error) {
      // The card itself does not answer any more: what was measured before stands.
      out.left_out.push_back(fmt::format("from {} on: {}", measurements[i].probe, error.what()));
      break;
    }
    if (options.progress) {
      options.progress(i + 1, measurements.size(), measurements[i].probe);
    }
  }
  out.samples = run.take();
  return out;
}

}  // namespace oomcast::validation
