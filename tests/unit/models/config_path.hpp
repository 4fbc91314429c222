// Where the configuration of a published model lies: carried with the tests, or in the shared
// material; empty when in neither.
#pragma once

#include <filesystem>
#include <string>

namespace oomcast::models {

inline std::string config_path(const std::string& file) {
  for (const std::string& folder : {std::string(OOMCAST_TEST_DATA) + "/models/configs/",
                                    std::string(OOMCAST_SHARED_DIR) + "/model_configs/"}) {
    if (std::filesystem::exists(folder + file)) {
      return folder + file;
    }
  }
  return {};
}

}  // namespace oomcast::models
