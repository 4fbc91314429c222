// The workload that a replay's options describe.
#include <algorithm>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads {
namespace {

// Streams that draw do so apart from each other.
class Seeds {
 public:
  explicit Seeds(std::uint64_t first) : first_(first) {}
  std::uint64_t next() {
    const std::uint64_t number = given_++;
    return number == 0 ? first_ : mix64(first_ + number);
  }

 private:
  std::uint64_t first_;
  std::uint64_t given_ = 0;
};

// A trace whose outputs are drawn where the options ask for it.
std::unique_ptr<RequestStream> trace_of(const std::string& path, const WorkloadOptions& options,
                                        Seeds& seeds) {
  TraceOptions trace;
  trace.format = options.trace_format;
  trace.zero_output = options.zero_output;
  trace.seed = options.seed;
  trace.draws_output = !options.output.empty();
  if (options.closed_loop) {
    trace.concurrent_sessions = *options.closed_loop;
  }
  std::unique_ptr<RequestStream> stream = open_trace(path, trace);
  return options.output.empty() ? std::move(stream)
                                : draw_outputs(std::move(stream), options.output, seeds.next());
}

}  // namespace

std::unique_ptr<RequestStream> make_workload(const WorkloadOptions& options) {
  if (options.traces.empty() && options.synthetic.empty()) {
    throw ConfigError(
        Problem{"command line", "", "neither", "--trace FILE or --synthetic SPEC", ""});
  }
  const auto pipes = std::count(options.traces.begin(), options.traces.end(), "-") +
                     (options.warm_up == "-" ? 1 : 0);
  if (pipes > 1) {
    throw ConfigError(
        Problem{"command line", "--trace", "- twice", "standard input at most once", ""});
  }
  if (!options.output.empty() && options.traces.empty() && options.warm_up.empty()) {
    throw ConfigError(Problem{"command line", "--output", options.output, "--trace FILE with it",
                              "a synthetic workload has output=LENGTHS"});
  }
  Seeds seeds(options.seed);
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (const std::string& trace : options.traces) {
    streams.push_back(trace_of(trace, options, seeds));
  }
  for (const std::string& synthetic : options.synthetic) {
    streams.push_back(make_synthetic(synthetic, seeds.next()));
    if (options.closed_loop && streams.back()->is_closed_loop()) {
      throw ConfigError(Problem{"command line", "--closed-loop",
                                fmt::format("{}", *options.closed_loop),
                                "no closed workload beside it", "it has clients=N"});
    }
  }
  return with_options(merge_streams(std::move(streams)), options);
}

std::unique_ptr<RequestStream> with_options(std::unique_ptr<RequestStream> stream,
                                            const WorkloadOptions& options) {
  if (!options.rate_scale.empty()) {
    stream = scale_rate(std::move(stream), options.rate_scale);
  }
  if (!options.prompt_scale.empty()) {
    stream = scale_prompts(std::move(stream), options.prompt_scale);
  }
  if (!options.timeout.empty()) {
    stream = limit_patience(std::move(stream), options.timeout);
  }
  if (options.requests) {
    stream = limit_requests(std::move(stream), *options.requests);
  }
  if (options.closed_loop && !stream->is_closed_loop()) {
    stream = close_loop(std::move(stream), *options.closed_loop, Nanos{});
  }
  if (!options.warm_up.empty()) {
    Seeds seeds(mix64(options.seed));
    std::unique_ptr<RequestStream> warm_up = trace_of(options.warm_up, options, seeds);
    if (!options.prompt_scale.empty()) {
      warm_up = scale_prompts(std::move(warm_up), options.prompt_scale);
    }
    stream = warmed_up(std::move(warm_up), std::move(stream));
  }
  return stream;
}

}  // namespace oomcast::workloads
