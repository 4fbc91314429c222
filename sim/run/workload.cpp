#include "sim/run/workload.hpp"

#include <fmt/format.h>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

constexpr const char* kCommandLine = "command line";

OrderedJson reasons_json(const std::map<std::string, workloads::ReadSummary::Reason>& reasons) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, reason] : reasons) {
    json[name] = {{"count", reason.count}, {"first", reason.first}};
  }
  return json;
}

}  // namespace

std::unique_ptr<workloads::RequestStream> open_workload(const WorkloadInput& input) {
  Problems problems;
  if (input.traces.empty() == input.synthetic.empty()) {
    problems.add({kCommandLine, "--trace", input.traces.empty() ? "" : "with --synthetic",
                  "either --trace FILE or --synthetic SPEC", ""});
  }
  if (input.requests && *input.requests < 1) {
    problems.add({kCommandLine, "--requests", std::to_string(*input.requests), "at least 1", ""});
  }
  if (input.closed_loop && *input.closed_loop < 1) {
    problems.add({kCommandLine, "--closed-loop", std::to_string(*input.closed_loop),
                  "at least 1 client", ""});
  }
  problems.raise_if_any();
  std::unique_ptr<workloads::RequestStream> stream;
  if (!input.synthetic.empty()) {
    stream = workloads::make_synthetic(input.synthetic, input.seed);
  } else {
    workloads::TraceOptions options;
    options.format = input.trace_format;
    std::vector<std::unique_ptr<workloads::RequestStream>> streams;
    for (const std::string& path : input.traces) {
      streams.push_back(workloads::open_trace(path, options));
    }
    stream = streams.size() == 1 ? std::move(streams.front())
                                 : workloads::merge_streams(std::move(streams));
  }
  if (!input.rate_scale.empty()) {
    stream = workloads::scale_rate(std::move(stream), input.rate_scale);
  }
  if (input.requests) {
    stream = workloads::limit_requests(std::move(stream), *input.requests);
  }
  if (input.closed_loop) {
    stream = workloads::close_loop(std::move(stream), *input.closed_loop, Nanos{0});
  }
  return stream;
}

OrderedJson workload_json(const WorkloadInput& input, const workloads::ReadSummary& summary) {
  OrderedJson json;
  // Names without folders: a record does not depend on where a trace lay.
  std::vector<std::string> names;
  for (const std::string& path : input.traces) {
    names.push_back(path.substr(path.find_last_of('/') + 1));
  }
  json["source"] = names.empty() ? input.synthetic : fmt::format("{}", fmt::join(names, " + "));
  json["format"] = summary.format;
  json["read"] = summary.read;
  json["kept"] = summary.kept;
  json["dropped"] = reasons_json(summary.dropped);
  json["changed"] = reasons_json(summary.changed);
  json["notes"] = summary.notes;
  json["origin"] = summary.origin;
  return OrderedJson::array({json});
}

}  // namespace oomcast
