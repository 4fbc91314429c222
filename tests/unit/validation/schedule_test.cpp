// The schedule of measurements on a made-up card: bounds, faults, who else is there, the document.
#include "validation/schedule/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "validation/schedule/synthetic_device.hpp"

namespace oomcast::validation {
namespace {

using fit::ProbeSample;
using fit::SampleStatus;

// A card with faults, one kind at a time.
class FaultyDevice : public SyntheticDevice {
 public:
  FaultyDevice() : SyntheticDevice({}, 1, 0) {}

  Card card() override {
    Card card = SyntheticDevice::card();
    card.mig = mig;
    return card;
  }
  CardUse use() override {
    CardUse use = SyntheticDevice::use();
    if (!lost_at.empty() && calls[lost_at] > 0) {
      throw DeviceFailure("cudaMemGetInfo: unspecified launch failure");
    }
    if (free) {
      use.free = *free;
    }
    use.other_processes = others;
    // Another process takes and gives while the first `disturbances` repeats run.
    use.others_bytes = Bytes{disturbances > 0 ? ++churn : 0};
    return use;
  }
  Values measure(const std::string& probe, const Settings& settings) override {
    ++calls[probe];
    disturbances -= disturbances > 0 ? 1 : 0;
    if (probe == out_of_memory) {
      throw OutOfMemory("cudaMalloc: out of memory");
    }
    if (probe == failing) {
      throw DeviceFailure("a kernel: unspecified launch failure");
    }
    return SyntheticDevice::measure(probe, settings);
  }

  bool mig = false;
  std::int64_t others = 0;
  std::optional<Bytes> free;
  std::string out_of_memory;
  std::string failing;
  std::string lost_at;  // the card answers no more once this probe has run
  int disturbances = 0;
  std::int64_t churn = 0;
  std::map<std::string, int> calls;
};

RunOptions options() {
  RunOptions options;
  options.date = "2026-11-30T00:00:00Z";
  return options;
}

std::vector<ProbeSample> of(const fit::ProbeSamples& run, const std::string& probe) {
  std::vector<ProbeSample> out;
  std::copy_if(run.samples.begin(), run.samples.end(), std::back_inserter(out),
               [&](const ProbeSample& sample) { return sample.probe == probe; });
  return out;
}

fit::ProbeSamples run_all(Device& device, const RunOptions& given = options()) {
  return run_measurements(device, measurements_for(device.card()), given);
}

TEST(Schedule, EveryMeasurementLeavesItsRepeats) {
  FaultyDevice device;
  const auto measurements = measurements_for(device.card());
  std::size_t expected = 0;
  int warmups = 0;
  std::set<std::string> probes;
  for (const Measurement& measurement : measurements) {
    // This device has none of these.
    const bool unsupported = measurement.probe == "cublaslt";
    expected += unsupported ? 1U : static_cast<std::size_t>(measurement.repeats);
    warmups += measurement.probe == "graph" ? measurement.warmups : 0;
    probes.insert(measurement.probe);
    EXPECT_TRUE(probe_versions().contains(measurement.probe)) << measurement.probe;
  }
  EXPECT_GE(probes.size(), 17U);
  std::size_t told = 0;
  RunOptions given = options();
  given.progress = [&](std::size_t done, std::size_t all, const std::string&) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(all, measurements.size());
  };
  const fit::ProbeSamples run = run_measurements(device, measurements, given);
  EXPECT_EQ(run.samples.size(), expected);
  EXPECT_EQ(told, measurements.size());
  EXPECT_EQ(static_cast<std::size_t>(device.calls["graph"] - warmups), of(run, "graph").size());
  EXPECT_EQ(of(run, "cublaslt").front().status, SampleStatus::kUnsupported);
  for (const ProbeSample& sample : run.samples) {
    EXPECT_FALSE(sample.disturbed);
    EXPECT_EQ(sample.free_before, sample.free_after);
  }
}

TEST(Schedule, TheDocumentReadsBackAndRepeats) {
  SyntheticDevice first({}, 5, 0.01);
  SyntheticDevice second({}, 5, 0.01);
  const std::string text = fit::probe_samples_json(run_all(first)).dump(1);
  EXPECT_EQ(fit::probe_samples_json(run_all(second)).dump(1), text);
  EXPECT_EQ(fit::probe_samples_json(fit::parse_probe_samples(text, "s")).dump(1), text);
}

TEST(Schedule, NeverNeedsMoreThanItsShareOfTheFreeMemory) {
  FaultyDevice device;
  device.free = Bytes{std::int64_t{1} << 30};
  const fit::ProbeSamples run = run_all(device);
  std::int64_t skipped = 0;
  for (const Measurement& measurement : measurements_for(device.card())) {
    const bool fits = static_cast<double>(measurement.needs.count()) <= 0.9 * (1 << 30);
    const auto found = std::find_if(run.samples.begin(), run.samples.end(), [&](const auto& s) {
      return s.probe == measurement.probe && s.settings == measurement.settings;
    });
    ASSERT_NE(found, run.samples.end());
    EXPECT_EQ(found->status == SampleStatus::kSkipped, !fits) << label_of(*found);
    skipped += fits ? 0 : 1;
  }
  EXPECT_GT(skipped, 5);
  EXPECT_EQ(device.calls["context"], 0);
}

TEST(Schedule, OutOfMemoryAndFailuresAreReportedAndTheRunGoesOn) {
  FaultyDevice device;
  device.out_of_memory = "graph";
  device.failing = "permute";
  const fit::ProbeSamples run = run_all(device);
  for (const ProbeSample& sample : of(run, "graph")) {
    EXPECT_EQ(sample.status, SampleStatus::kOutOfMemory);
    EXPECT_EQ(sample.note, "cudaMalloc: out of memory");
  }
  EXPECT_EQ(of(run, "graph").size(), 15U);  // no repeats of what cannot be
  EXPECT_EQ(of(run, "permute").front().status, SampleStatus::kFailed);
  EXPECT_EQ(of(run, "transfer").back().status, SampleStatus::kDone);
}

TEST(Schedule, ACardThatIsLostLeavesWhatWasMeasured) {
  FaultyDevice device;
  device.lost_at = "vmm";
  const fit::ProbeSamples run = run_all(device);
  EXPECT_EQ(run.samples.back().probe, "malloc");
  EXPECT_EQ(run.left_out.back(), "from vmm on: cudaMemGetInfo: unspecified launch failure");
}

TEST(Schedule, StopsAtItsLimit) {
  FaultyDevice device;
  RunOptions given = options();
  given.seconds = 5;
  const fit::ProbeSamples run = run_all(device, given);
  EXPECT_EQ(run.samples.front().status, SampleStatus::kDone);
  EXPECT_EQ(run.samples.back().status, SampleStatus::kSkipped);
  EXPECT_NE(run.samples.back().note.find("limit of 5 s"), std::string::npos);
  EXPECT_LT(device.seconds(), 7);
}

TEST(Schedule, SharedCardsOnlyWhenAllowed) {
  FaultyDevice device;
  device.mig = true;
  EXPECT_THROW(run_all(device), Unsupported);
  device.mig = false;
  device.others = 2;
  EXPECT_THROW(run_all(device), Unsupported);
  RunOptions given = options();
  given.allow_shared = true;
  EXPECT_EQ(run_all(device, given).card.other_processes, 2);
}

TEST(Schedule, MeasuresAgainWhatOthersDisturbed) {
  FaultyDevice device;
  device.disturbances = 2;
  const fit::ProbeSamples run = run_all(device);
  // The first measurement was tried three times, and the third counts.
  EXPECT_EQ(device.calls["card"], 5);
  EXPECT_FALSE(run.samples.front().disturbed);
  FaultyDevice busy;
  busy.disturbances = 1000;
  EXPECT_TRUE(run_all(busy).samples.front().disturbed);
}

TEST(Schedule, MorePeersOnMoreCards) {
  Card card = FaultyDevice().card();
  card.devices = 4;
  std::map<std::string, int> count;
  for (const Measurement& measurement : measurements_for(card)) {
    ++count[measurement.probe];
  }
  EXPECT_EQ(count["peer"], 3);
  EXPECT_EQ(count["nccl"], 5);
}

}  // namespace
}  // namespace oomcast::validation
