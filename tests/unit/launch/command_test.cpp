#include "sim/launch/command.hpp"

#include <gtest/gtest.h>

namespace oomcast::launch {
namespace {

EngineCommand found(std::string_view line) {
  Problems problems;
  const auto command = find_engine_command(line, problems);
  EXPECT_TRUE(command.has_value()) << line;
  EXPECT_TRUE(problems.empty()) << line;
  return command.value_or(EngineCommand{});
}

std::string arguments(const EngineCommand& command) {
  std::string out;
  for (const Word& word : command.arguments) {
    out += (out.empty() ? "" : "|") + word.text;
  }
  return out;
}

TEST(EngineCommand, IsFoundBehindWrappers) {
  for (const char* line : {
           "vllm serve M --x",
           "/opt/venv/bin/vllm serve M --x",
           "nohup vllm serve M --x > log 2>&1 &",
           "sudo -E env A=1 vllm serve M --x | tee log",
           "uv run --with vllm vllm serve M --x",
           "cd /data && source venv/bin/activate && vllm serve M --x",
           "bash -c 'vllm serve M --x'",
           "bash -lc \"cd /tmp; exec vllm serve M --x\"",
           "docker run --rm --gpus all -it img/vllm-openai bash -c 'vllm serve M --x'",
           "docker run --gpus all --entrypoint vllm any/image serve M --x",
           "srun -n 1 --gres=gpu:8 vllm serve M --x",
       }) {
    const EngineCommand command = found(line);
    EXPECT_EQ(command.engine, Engine::kVllm) << line;
    EXPECT_EQ(arguments(command), "M|--x") << line;
  }
}

TEST(EngineCommand, ContainerOptionsImageAndTag) {
  const EngineCommand command = found(
      "docker run --runtime nvidia --gpus '\"device=0,1\"' -v ~/.cache:/root/.cache -p 8000:8000 "
      "--ipc=host --env \"HF_TOKEN=t\" -e VLLM_USE_V1=1 -eA=2 --env=B=3 --shm-size 16g --rm -d "
      "--name s registry:5000/vllm/vllm-openai:v0.19.0@sha256:00 --model M -tp 2");
  EXPECT_EQ(command.image, "registry:5000/vllm/vllm-openai");
  EXPECT_EQ(command.image_tag, "v0.19.0");
  EXPECT_EQ(arguments(command), "--model|M|-tp|2");
  EXPECT_EQ(command.environment.at("VLLM_USE_V1").text, "1");
  EXPECT_EQ(command.environment.at("A").text, "2");
  EXPECT_EQ(command.environment.at("B").text, "3");
}

TEST(EngineCommand, PodmanAndAnImageWithoutTag) {
  const EngineCommand command =
      found("podman run --device nvidia.com/gpu=all -p 80:80 docker.io/vllm/vllm-openai M");
  EXPECT_EQ(command.image_tag, "");
  EXPECT_EQ(arguments(command), "M");
}

TEST(EngineCommand, OtherEngines) {
  EXPECT_EQ(found("python3 -m sglang.launch_server --model-path M").engine, Engine::kSglang);
  EXPECT_EQ(found("sglang serve --model-path M").engine, Engine::kSglang);
  EXPECT_EQ(found("docker run lmsysorg/sglang:v0.5.8 python3 -m sglang.launch_server --model M")
                .image_tag,
            "v0.5.8");
  EXPECT_EQ(found("trtllm-serve M --tp_size 8").engine, Engine::kTrtllm);
  EXPECT_EQ(arguments(found("mpirun -n 8 trtllm-llmapi-launch trtllm-serve serve M")), "M");
}

TEST(EngineCommand, EnvironmentOfChainsExportsAndPrefixes) {
  const EngineCommand command = found("export A=1\nB=2\nC=3 env D=4 vllm serve M\n");
  EXPECT_EQ(command.environment.at("A").text, "1");
  EXPECT_EQ(command.environment.at("C").text, "3");
  EXPECT_EQ(command.environment.at("D").text, "4");
}

TEST(EngineCommand, OtherCommandsAreNamedInANote) {
  const EngineCommand command = found("set -e; pip install vllm; vllm serve M");
  ASSERT_EQ(command.notes.size(), 1U);
  EXPECT_NE(command.notes[0].find("`pip`"), std::string::npos);
}

TEST(EngineCommand, NoneOrSeveralIsOneClearProblem) {
  for (const char* line : {"", "   \n", "ls -l", "vllm bench serve M", "docker run", "docker run a",
                           "vllm serve A & vllm serve B", "python -m http.server"}) {
    Problems problems;
    EXPECT_FALSE(find_engine_command(line, problems).has_value()) << line;
    EXPECT_EQ(problems.found().size(), 1U) << line;
  }
}

TEST(EngineCommand, NestingIsBounded) {
  std::string line = "vllm serve M";
  for (int i = 0; i < 6; ++i) {
    std::string quoted;
    for (const char letter : line) {
      quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    }
    line = "bash -c '" + quoted + "'";
  }
  Problems problems;
  EXPECT_FALSE(find_engine_command(line, problems).has_value());
  EXPECT_FALSE(problems.empty());
}

}  // namespace
}  // namespace oomcast::launch
