// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/yaml_document.hpp"

#include <yaml-cpp/eventhandler.h>

#include <optional>
#include <sstream>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::env {
namespace {

/// \throws if a document starts at the position of the previous one.
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

std::vector<YAML::Node> documents_of(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  GoesOn goes_on;
  while (parser.HandleNextDocument(goes_on)) {
  }
  auto documents = YAML::LoadAll(text);
  std::erase_if(documents, [](const YAML::Node& each) { return each.IsNull(); });
  return documents;
}

}  // namespace

YAML::Node yaml_document(const std::string& text, const std::string& path, std::string_view operation) {
  std::vector<YAML::Node> documents;
  try {
    documents = documents_of(text);
  } catch (const YAML::Exception& error) {
    base::fail(ErrorKind::environment, {}, operation, "{} line {} is not YAML: {}", path, error.mark.line + 1,
               error.msg);
  }
  if (documents.size() > 1) {
    base::fail(ErrorKind::environment, {}, operation,
               "{} has {} documents with --- between them, must have 1; put each into a separate file", path,
               documents.size());
  }
  return documents.empty() ? YAML::Node() : documents.front();
}

}  // namespace accelerate::env
