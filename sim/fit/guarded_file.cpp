#include "sim/fit/guarded_file.hpp"

#include <algorithm>

#include "sim/core/digest.hpp"

namespace oomcast::fit {

void known_keys(const JsonView& view, const std::vector<std::string>& keys,
                const std::string& what) {
  if (!view.raw().is_object()) {
    return;
  }
  for (const auto& [key, value] : view.raw().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      view.complain(key, "a key of " + what, did_you_mean(key, keys));
    }
  }
}

std::string file_checksum(Json file) {
  file.erase("checksum");
  Digest digest;
  digest.add(std::string_view(file.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return digest.hex();
}

void check_checksum(const JsonView& file) {
  const auto checksum = file.text("checksum");
  if (checksum && *checksum != file_checksum(file.raw())) {
    file.complain("checksum", file_checksum(file.raw()),
                  "the file is damaged, or was edited: then remove the checksum");
  }
}

}  // namespace oomcast::fit
