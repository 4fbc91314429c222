// BurstGPT: whole seconds from midnight of its first day. File 3 inserts columns in front, so only
// names count. Failed requests have no tokens and are dropped by the rule for zero lengths.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat burstgpt() {
  FlatFormat format;
  format.name = "burstgpt";
  format.about = "BurstGPT 1-3, with or without failures; seconds";
  format.required = {"Timestamp", "Request tokens", "Response tokens"};
  format.arrival = "Timestamp";
  format.input = "Request tokens";
  format.output = "Response tokens";
  // API rows have no session.
  format.session = "Session ID";
  return format;
}

}  // namespace oomcast::workloads::formats
