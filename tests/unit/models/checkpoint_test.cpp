// Files beside a config.json: the checkpoint's own size wins over arithmetic.
#include "models/checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "models/config_reader.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTinyBytes = 2 * (2 * 1024 * 64 + 64 + 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64);

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("oomcast_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write("config.json", Json{{"architectures", {"LlamaForCausalLM"}},
                              {"hidden_size", 64},
                              {"intermediate_size", 128},
                              {"num_hidden_layers", 1},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 4},
                              {"vocab_size", 1024},
                              {"max_position_embeddings", 128},
                              {"tie_word_embeddings", false},
                              {"torch_dtype", "bfloat16"}}
                             .dump());
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void write_index(std::int64_t total) const {
    write("model.safetensors.index.json",
          Json{{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}}.dump());
  }
  static std::string with_length(const std::string& header) {
    std::string out;
    for (std::size_t i = 0; i < 8; ++i) {
      out += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
    }
    return out + header;
  }
  [[nodiscard]] ModelSpec read() const { return read_model_config(folder_.string()); }
  [[nodiscard]] std::string refusal() const {
    try {
      read_model_config(folder_.string());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  }

  fs::path folder_;
};

TEST_F(Checkpoint, OfTheExpectedSizeChangesNothing) {
  EXPECT_EQ(computed_checkpoint(read()), Bytes{kTinyBytes});
  write_index(kTinyBytes);
  EXPECT_FALSE(read().checkpoint);
  EXPECT_TRUE(read().notes.empty());
}

TEST_F(Checkpoint, OfAnotherSizeWinsAndIsReported) {
  const Bytes computed = weights_on_rank(read(), {}).weights;
  write_index(kTinyBytes * 11 / 10);
  const ModelSpec spec = read();
  ASSERT_TRUE(spec.checkpoint);
  EXPECT_NEAR(static_cast<double>(weights_on_rank(spec, {}).weights.count()),
              1.1 * static_cast<double>(computed.count()), 16.0);
  EXPECT_EQ(weights_on_rank(spec, {}).buffers, Bytes{128 * 16 * 2}) << "no checkpoint has them";
  ASSERT_EQ(spec.notes.size(), 1U);
  EXPECT_NE(spec.notes.front().find("+10.00 %"), std::string::npos) << spec.notes.front();
}

TEST_F(Checkpoint, HeadersCountWhereThereIsNoIndex) {
  const std::string first =
      Json{{"__metadata__", {{"format", "pt"}}},
           {"a", {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {0, kTinyBytes}}}}}
          .dump();
  const std::string second =
      Json{{"b", {{"dtype", "BF16"}, {"shape", {1}}, {"data_offsets", {0, kTinyBytes / 2}}}}}
          .dump();
  write("model-00001-of-00002.safetensors", with_length(first));
  EXPECT_FALSE(read().checkpoint);
  write("model-00002-of-00002.safetensors", with_length(second));
  ASSERT_TRUE(read().checkpoint);
  EXPECT_EQ(read().checkpoint->stored, Bytes{kTinyBytes + kTinyBytes / 2});
}

TEST_F(Checkpoint, DamagedOrForeignFilesAreRefused) {
  write_index(kTinyBytes * 100);
  EXPECT_NE(refusal().find("belong to this configuration"), std::string::npos);
  for (const char* const index : {"[]", "{}", R"({"metadata": {"total_size": -5}})",
                                  R"({"metadata": {"total_size": 1e300}})", "{\"metadata\""}) {
    write("model.safetensors.index.json", index);
    EXPECT_NE(refusal().find("model.safetensors.index.json"), std::string::npos) << index;
  }
  fs::remove(folder_ / "model.safetensors.index.json");
  for (const std::string& file :
       {std::string("abc"), std::string(8, '\xff'), with_length("{\"a\": 1}"),
        with_length(R"({"a": {"data_offsets": [5, 1]}})"), with_length("{}").substr(0, 9)}) {
    write("model.safetensors", file);
    EXPECT_NE(refusal().find("model.safetensors"), std::string::npos);
  }
}

}  // namespace
}  // namespace oomcast::models
