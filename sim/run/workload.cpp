#include "sim/run/workload.hpp"

#include <fmt/format.h>

namespace oomcast {
namespace {

OrderedJson reasons_json(const std::map<std::string, workloads::ReadSummary::Reason>& reasons) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, reason] : reasons) {
    json[name] = {{"count", reason.count}, {"first", reason.first}};
  }
  return json;
}

}  // namespace

OrderedJson workload_json(const workloads::WorkloadOptions& options,
                          const workloads::ReadSummary& summary) {
  OrderedJson json;
  // Names without folders: a record does not depend on where a trace lay.
  std::vector<std::string> names;
  for (const std::string& path : options.traces) {
    names.push_back(path.substr(path.find_last_of('/') + 1));
  }
  names.insert(names.end(), options.synthetic.begin(), options.synthetic.end());
  json["source"] = fmt::format("{}", fmt::join(names, " + "));
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
