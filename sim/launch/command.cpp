#include "sim/launch/command.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace oomcast::launch {
namespace {

constexpr int kMaxNesting = 4;

using Words = std::span<const Word>;
using Environment = std::map<std::string, Word, std::less<>>;

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Where an engine starts inside the words of a command: the index after its own name.
struct Start {
  Engine engine;
  std::size_t arguments;
  bool model_is_positional;
};

std::optional<Start> module_start(std::string_view module, std::size_t after, Words words) {
  const bool serve_follows = after < words.size() && words[after].text == "serve";
  if (module == "vllm.entrypoints.openai.api_server" || module == "vllm.entrypoints.api_server") {
    return Start{Engine::kVllm, after, false};
  }
  if ((module == "vllm.entrypoints.cli.main" || module == "vllm") && serve_follows) {
    return Start{Engine::kVllm, after + 1, true};
  }
  if (module == "sglang.launch_server") {
    return Start{Engine::kSglang, after, false};
  }
  if (module == "tensorrt_llm.commands.serve") {
    return Start{Engine::kTrtllm, after + (serve_follows ? 1 : 0), true};
  }
  return std::nullopt;
}

std::optional<Start> engine_start(Words words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view name = base_name(words[i].text);
    const bool serve_follows = i + 1 < words.size() && words[i + 1].text == "serve";
    if (name == "vllm" && serve_follows) {
      return Start{Engine::kVllm, i + 2, true};
    }
    if (name == "sglang" && serve_follows) {
      return Start{Engine::kSglang, i + 2, false};
    }
    if (name == "trtllm-serve") {
      return Start{Engine::kTrtllm, i + (serve_follows ? 2 : 1), true};
    }
    if (words[i].text == "-m" && i + 1 < words.size()) {
      if (const auto start = module_start(words[i + 1].text, i + 2, words)) {
        return start;
      }
    }
  }
  return std::nullopt;
}

std::optional<Engine> engine_of_image(std::string_view image) {
  if (image.find("vllm") != std::string_view::npos) {
    return Engine::kVllm;
  }
  if (image.find("sglang") != std::string_view::npos) {
    return Engine::kSglang;
  }
  if (image.find("tensorrt-llm") != std::string_view::npos ||
      image.find("tensorrt_llm") != std::string_view::npos) {
    return Engine::kTrtllm;
  }
  return std::nullopt;
}

std::optional<std::pair<std::string, std::string>> split_assignment(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(0, equals);
  const bool plain = std::all_of(name.begin(), name.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_';
  });
  if (!plain) {
    return std::nullopt;
  }
  return std::pair{std::string(name), std::string(text.substr(equals + 1))};
}

class Finder {
 public:
  explicit Finder(Problems& problems) : problems_(&problems) {}

  void read(std::string_view text, const Environment& inherited, int depth);

  std::vector<EngineCommand> found;
  std::vector<std::string> skipped;

 private:
  void read_command(Words words, const Environment& environment, int depth);
  void read_container(Words words, Environment environment, int depth);
  void add(const Start& start, Words words, const Environment& environment);

  Problems* problems_;
};

void Finder::add(const Start& start, Words words, const Environment& environment) {
  EngineCommand command;
  command.engine = start.engine;
  command.model_is_positional = start.model_is_positional;
  command.arguments.assign(words.begin() + static_cast<std::ptrdiff_t>(start.arguments),
                           words.end());
  command.environment = environment;
  // `env A=1`, `uv run --env B=2`: assignments among the wrapper's words.
  for (std::size_t i = 0; i < start.arguments; ++i) {
    if (auto assignment = split_assignment(words[i].text)) {
      command.environment[assignment->first] = Word{assignment->second, words[i].unknown};
    }
  }
  found.push_back(std::move(command));
}

// `docker run [options] IMAGE [command]`. Options that take no value are listed; every other one
// takes one unless it is written with `=`.
void Finder::read_container(Words words, Environment environment, int depth) {
  static constexpr std::array<std::string_view, 22> kBare = {"-d",
                                                             "-i",
                                                             "-t",
                                                             "-it",
                                                             "-ti",
                                                             "-dit",
                                                             "-itd",
                                                             "-P",
                                                             "-q",
                                                             "--detach",
                                                             "--init",
                                                             "--interactive",
                                                             "--no-healthcheck",
                                                             "--oom-kill-disable",
                                                             "--privileged",
                                                             "--publish-all",
                                                             "--quiet",
                                                             "--read-only",
                                                             "--rm",
                                                             "--sig-proxy",
                                                             "--tty",
                                                             "--disable-content-trust"};
  std::string entrypoint;
  std::size_t i = 0;
  while (i < words.size() && words[i].text.starts_with("-") && words[i].text.size() > 1) {
    const std::string& option = words[i].text;
    if (option == "--") {
      ++i;
      break;
    }
    if (std::find(kBare.begin(), kBare.end(), option) != kBare.end()) {
      ++i;
      continue;
    }
    std::string name = option;
    Word value;
    const bool is_long = option.starts_with("--");
    const std::size_t equals = option.find('=');
    if (is_long && equals != std::string::npos) {
      name = option.substr(0, equals);
      value = Word{option.substr(equals + 1), words[i].unknown};
      ++i;
    } else if (!is_long && option.size() > 2) {
      name = option.substr(0, 2);
      value = Word{option.substr(option[2] == '=' ? 3 : 2), words[i].unknown};
      ++i;
    } else {
      if (i + 1 < words.size()) {
        value = words[i + 1];
      }
      i += 2;
    }
    if (name == "-e" || name == "--env") {
      if (auto assignment = split_assignment(value.text)) {
        environment[assignment->first] = Word{assignment->second, value.unknown};
      }
    } else if (name == "--entrypoint") {
      entrypoint = value.text;
    }
  }
  if (i >= words.size()) {
    problems_->add({std::string(kLaunchLine), "container", "", "an image name after `run`", ""});
    return;
  }
  const std::string image = words[i].text;
  const std::size_t before = found.size();
  std::vector<Word> inner;
  if (!entrypoint.empty()) {
    inner.push_back(Word{entrypoint, {}});
  }
  inner.insert(inner.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
  const std::size_t skipped_before = skipped.size();
  read_command(inner, environment, depth + 1);
  if (found.size() == before) {
    // No command of its own: the words are arguments of the image's entry point.
    const auto engine = engine_of_image(image);
    if (!engine || !entrypoint.empty()) {
      return;
    }
    skipped.resize(skipped_before);
    add(Start{*engine, 0, *engine != Engine::kSglang}, inner, environment);
  }
  EngineCommand& command = found.back();
  if (const std::size_t digest = image.find('@'); digest != std::string::npos) {
    command.image = image.substr(0, digest);
  } else {
    command.image = image;
  }
  const std::size_t colon = command.image.rfind(':');
  if (colon != std::string::npos && command.image.find('/', colon) == std::string::npos) {
    command.image_tag = command.image.substr(colon + 1);
    command.image.resize(colon);
  }
}

void Finder::read_command(Words words, const Environment& environment, int depth) {
  if (words.empty()) {
    return;
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view name = base_name(words[i].text);
    const bool container =
        name == "docker" || name == "podman" || name == "nerdctl" || name == "nvidia-docker";
    if (container) {
      std::size_t run = i + 1;
      if (run < words.size() && words[run].text == "container") {
        ++run;
      }
      if (run < words.size() && words[run].text == "run") {
        read_container(words.subspan(run + 1), environment, depth);
        return;
      }
    }
    const bool shell = name == "bash" || name == "sh" || name == "zsh" || name == "dash";
    if (shell) {
      // -c, -lc, -ec, ...: the next word is a script.
      for (std::size_t at = i + 1; at + 1 < words.size() && words[at].text.starts_with("-"); ++at) {
        if (!words[at].text.starts_with("--") && words[at].text.ends_with("c")) {
          read(words[at + 1].text, environment, depth + 1);
          return;
        }
      }
    }
    if (name == "vllm" || name == "sglang" || name == "trtllm-serve" || words[i].text == "-m") {
      break;
    }
  }
  if (const auto start = engine_start(words)) {
    add(*start, words, environment);
    return;
  }
  skipped.push_back(words[0].text);
}

void Finder::read(std::string_view text, const Environment& inherited, int depth) {
  if (depth > kMaxNesting) {
    problems_->add({std::string(kLaunchLine), "", "", "at most 4 commands inside each other", ""});
    return;
  }
  Environment exported = inherited;
  for (const SimpleCommand& command : read_shell(text, *problems_)) {
    Environment environment = exported;
    for (const Assignment& assignment : command.assignments) {
      environment[assignment.name] = assignment.value;
    }
    if (command.words.empty()) {
      exported = std::move(environment);
      continue;
    }
    read_command(command.words, environment, depth);
  }
}

}  // namespace

std::optional<EngineCommand> find_engine_command(std::string_view text, Problems& problems) {
  Finder finder(problems);
  finder.read(text, {}, 0);
  constexpr std::string_view kExpected =
      "a line that starts an engine: `vllm serve MODEL ...`, `python -m sglang.launch_server "
      "--model-path MODEL ...` or `trtllm-serve MODEL ...`";
  if (finder.found.empty()) {
    if (problems.empty()) {
      problems.add({std::string(kLaunchLine), "", std::string(text.substr(0, 200)),
                    std::string(kExpected), ""});
    }
    return std::nullopt;
  }
  if (finder.found.size() > 1) {
    problems.add({std::string(kLaunchLine), "",
                  fmt::format("{} engine commands", finder.found.size()), "one engine command",
                  "give each deployment its own line"});
    return std::nullopt;
  }
  EngineCommand command = std::move(finder.found[0]);
  if (!finder.skipped.empty()) {
    std::string names;
    for (const std::string& name : finder.skipped) {
      names += (names.empty() ? "`" : ", `") + name.substr(0, 40) + "`";
    }
    command.notes.push_back("other commands in the line were passed over: " + names);
  }
  return command;
}

}  // namespace oomcast::launch
