// Any bytes as a trace or as the description of a synthetic workload: a stream whose arrivals never
// go back and whose lengths are positive, or ConfigError.
#include <cstdint>
#include <string>
#include <utility>

#include "sim/core/error.hpp"
#include "workloads/request_stream.hpp"

namespace {

using namespace oomcast;

void drain(workloads::RequestStream& stream) {
  constexpr int kMostRequests = 2000;
  workloads::TraceRequest request;
  SimTime last;
  for (int i = 0; i < kMostRequests && !stream.at_end(); ++i) {
    const auto due = stream.next_arrival();
    OOMCAST_CHECK(due.has_value(), "all finished, yet nothing is known");
    OOMCAST_CHECK(stream.is_closed_loop() || *due >= last, "arrivals go back");
    last = *due;
    stream.take(request);
    OOMCAST_CHECK(request.index == i, "indices are not dense");
    OOMCAST_CHECK(request.input > Tokens{} && request.output > Tokens{}, "empty request");
    Tokens sum;
    for (const ContentSegment& segment : request.content) {
      sum += segment.length;
    }
    OOMCAST_CHECK(request.content.empty() || sum == request.input, "content and input differ");
    if (stream.is_closed_loop()) {
      stream.on_finished(request.index, request.arrival);
    }
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] == 's') {
      // Not from files: the fuzzer must not read what lies on the disk.
      if (bytes.find("empirical") == std::string::npos) {
        drain(*workloads::make_synthetic(bytes, 1));
      }
    } else {
      auto stream = workloads::read_trace(bytes, "trace");
      if (data[0] == 'p') {
        stream =
            workloads::limit_patience(workloads::scale_prompts(std::move(stream), "1.37"), "9");
      }
      drain(*stream);
    }
  } catch (const ConfigError&) {
    return 0;
  } catch (const ArithmeticOverflow&) {
    return 0;
  }
  return 0;
}
