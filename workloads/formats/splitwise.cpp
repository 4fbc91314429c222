// Splitwise-sim's generated request traces.
#include "workloads/formats/formats.hpp"

namespace oomcast::workloads::formats {

FlatFormat splitwise() {
  FlatFormat format;
  format.name = "splitwise";
  format.about = "splitwise-sim traces; seconds";
  format.required = {"arrival_timestamp", "prompt_size", "token_size"};
  format.arrival = "arrival_timestamp";
  format.input = "prompt_size";
  format.output = "token_size";
  format.id = "request_id";
  return format;
}

}  // namespace oomcast::workloads::formats
