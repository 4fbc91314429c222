#include "tests/golden/operators_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <regex>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/kernels/operators.hpp"

namespace oomcast::golden {
namespace {

using kernels::AllocatorCall;

struct Replayed {
  std::int64_t left = 0;
  std::int64_t peak = 0;
  std::int64_t most_live = 0;  // blocks
};

Replayed replay(const std::vector<AllocatorCall>& calls) {
  allocator::DeviceConfig device;
  device.total = allocator::kMaxDeviceBytes;
  allocator::CachingAllocator cache(device, {});
  std::vector<allocator::BlockHandle> blocks(calls.size());
  Replayed out;
  std::int64_t live = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].bytes < 0) {
      cache.free(blocks[calls[i].made_by]);
      --live;
      continue;
    }
    const auto block = cache.allocate(Bytes{calls[i].bytes});
    if (!block) {
      throw ConfigError(Problem{"recorded operator", "bytes", std::to_string(calls[i].bytes),
                                "less memory than any GPU has", ""});
    }
    blocks[i] = *block;
    out.most_live = std::max(out.most_live, ++live);
  }
  out.left = cache.stats().allocated.count();
  out.peak = cache.stats().allocated_peak.count();
  return out;
}

void compare(const char* field, std::int64_t expected, std::int64_t got, const Replayed& replayed,
             OperatorResult& result) {
  result.exact_left_and_peak = result.exact_left_and_peak && expected == got;
  if (std::abs(expected - got) > replayed.most_live * kMiB.count()) {
    result.off.push_back(fmt::format("{} expected {} got {}", field, expected, got));
  }
}

}  // namespace

models::GpuSpec recorded_gpu(const Json& header) {
  models::GpuSpec gpu = models::find_gpu("H100");
  const std::string device = header.value("device", "");
  std::smatch found;
  if (std::regex_search(device, found, std::regex("sm_([0-9]{1,2})([0-9])\\b"))) {
    gpu.compute_major = std::stoi(found[1]);
    gpu.compute_minor = std::stoi(found[2]);
  }
  if (std::regex_search(device, found, std::regex("([0-9]{1,4}) SMs"))) {
    gpu.sm_count = std::stoi(found[1]);
  }
  return gpu;
}

OperatorResult check_operator(const Json& recorded, const models::GpuSpec& gpu) {
  const auto expected = recorded.at("bytes").get<std::vector<std::int64_t>>();
  const auto calls = kernels::operator_calls(
      recorded.at("op").get<std::string>(),
      {recorded.at("rows").get<std::int64_t>(), recorded.at("cols").get<std::int64_t>()}, gpu);
  std::vector<std::int64_t> got;
  std::transform(calls.begin(), calls.end(), std::back_inserter(got),
                 [](const AllocatorCall& call) { return call.bytes; });
  OperatorResult result{{}, true};
  if (got != expected) {
    result.off.push_back(
        fmt::format("bytes expected {} got {}", fmt::join(expected, ","), fmt::join(got, ",")));
    result.exact_left_and_peak = false;
    return result;
  }
  const Replayed replayed = replay(calls);
  compare("left", recorded.at("left").get<std::int64_t>(), replayed.left, replayed, result);
  compare("peak", recorded.at("peak").get<std::int64_t>(), replayed.peak, replayed, result);
  return result;
}

}  // namespace oomcast::golden
