// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/yaml_documents.hpp"

#include <yaml-cpp/eventhandler.h>

#include <optional>
#include <sstream>

namespace accelerate::env {
namespace {

/// Throws where a document begins at the place where the one before it did.
class GoesOn final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (begun_at_ == mark.pos) throw YAML::ParserException(mark, "no value begins with this");
    begun_at_ = mark.pos;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  std::optional<int> begun_at_;
};

}  // namespace

std::vector<YAML::Node> yaml_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  GoesOn goes_on;
  while (parser.HandleNextDocument(goes_on)) {
  }
  auto documents = YAML::LoadAll(text);
  std::erase_if(documents, [](const YAML::Node& each) { return each.IsNull(); });
  return documents;
}

}  // namespace accelerate::env
