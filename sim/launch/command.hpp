// Which engine a piece of shell text starts, with which arguments and environment: sees through
// `docker run`, `bash -c`, `env`, `nohup`, `uv run` and the like.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/launch/launch.hpp"
#include "sim/launch/shell_words.hpp"

namespace oomcast::launch {

struct EngineCommand {
  Engine engine = Engine::kVllm;
  // The arguments after `vllm serve`, the module name or the container image.
  std::vector<Word> arguments;
  // `vllm serve MODEL` takes the model as a bare word; the older module entry point only `--model`.
  bool model_is_positional = true;
  std::string image_tag;  // of the container image, if there is one
  std::string image;
  std::map<std::string, Word, std::less<>> environment;
  std::vector<std::string> notes;
};

// Adds to `problems` and returns nullopt when the text holds no engine command, or several.
std::optional<EngineCommand> find_engine_command(std::string_view text, Problems& problems);

}  // namespace oomcast::launch
