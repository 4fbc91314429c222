// Settings as Python prints them.
#include "sim/logs/python_repr.hpp"

#include <gtest/gtest.h>

#include <string>

namespace oomcast::logs {
namespace {

TEST(PythonRepr, DictOfEverything) {
  const OrderedJson json = parse_python_settings(
      "{'model': 'a/b', \"note\": \"it's\", 'n': 8192, 'share': 0.9, 'on': True, 'none': None, "
      "'sizes': [1, 2, 4], 'pair': (1, 'x'), 'nested': {'mode': <CUDAGraphMode.FULL: (2, 1)>}, "
      "'dtype': torch.bfloat16, 'path': PosixPath('/m'), 'neg': -1}");
  EXPECT_EQ(json.dump(),
            R"({"model":"a/b","note":"it's","n":8192,"share":0.9,"on":true,"none":null,)"
            R"("sizes":[1,2,4],"pair":[1,"x"],"nested":{"mode":"FULL"},)"
            R"("dtype":"torch.bfloat16","path":"/m","neg":-1})");
}

TEST(PythonRepr, InsideOfACall) {
  const OrderedJson json = parse_python_settings(
      "model='x', decoding_config=DecodingConfig(backend='auto', strict=False), "
      "served_model_name=a/b-3, seed=0, compilation_config={\"level\":3,\"sizes\":[512,504]})");
  EXPECT_EQ(json.dump(), R"({"model":"x","decoding_config":{"backend":"auto","strict":false},)"
                         R"("served_model_name":"a/b-3","seed":0,)"
                         R"("compilation_config":{"level":3,"sizes":[512,504]}})");
}

TEST(PythonRepr, CutTextsGiveWhatCameBefore) {
  const std::string whole = "{'model': 'a/b', 'n': 8192, 'sizes': [1, 2, 4], 'on': True}";
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    const OrderedJson json = parse_python_settings(whole.substr(0, cut));
    ASSERT_TRUE(json.is_object());
    // Never a part of a value.
    if (json.contains("n")) {
      EXPECT_EQ(json["n"], 8192);
    }
    if (json.contains("sizes")) {
      EXPECT_EQ(json["sizes"].size(), 3U);
    }
    // The last word could go on, unless something follows it.
    EXPECT_EQ(json.contains("on"), cut == whole.size());
  }
}

TEST(PythonRepr, HostileTextsEnd) {
  EXPECT_TRUE(parse_python_settings(std::string(100'000, '[')).empty());
  EXPECT_TRUE(parse_python_settings("{" + std::string(100'000, '{')).empty());
  EXPECT_TRUE(parse_python_settings("= , ) }").empty());
  std::string deep = "a=";
  for (int i = 0; i < 10'000; ++i) {
    deep += "A(a=";
  }
  EXPECT_TRUE(parse_python_settings(deep).empty());
}

}  // namespace
}  // namespace oomcast::logs
