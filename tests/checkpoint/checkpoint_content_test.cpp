// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/checkpoint/small_content.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using testing::load;
using testing::save;
using testing::SharedFolder;
using testing::small_content;

namespace {

void check_same(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].first);
    CHECK(a[i].first == b[i].first);
    CHECK((a[i].second.scalar_type() == b[i].second.scalar_type()));
    CHECK(a[i].second.sizes() == b[i].second.sizes());
    CHECK(torch::equal(a[i].second, b[i].second));
  }
}

void check_same(const checkpoint::CheckpointContent& a, const checkpoint::CheckpointContent& b) {
  CHECK(a.step == b.step);
  CHECK(a.epoch == b.epoch);
  CHECK(a.accumulated == b.accumulated);
  REQUIRE(a.models.size() == b.models.size());
  for (size_t i = 0; i < a.models.size(); ++i) check_same(a.models[i], b.models[i]);
  check_same(a.masters, b.masters);
  REQUIRE(a.optimizers.size() == b.optimizers.size());
  for (size_t i = 0; i < a.optimizers.size(); ++i) {
    REQUIRE(a.optimizers[i].groups.size() == b.optimizers[i].groups.size());
    CHECK((a.optimizers[i].groups[0].options == b.optimizers[i].groups[0].options));
    CHECK(a.optimizers[i].groups[0].parameters == b.optimizers[i].groups[0].parameters);
    REQUIRE(a.optimizers[i].tensors.size() == b.optimizers[i].tensors.size());
    check_same(a.optimizers[i].tensors.at(1), b.optimizers[i].tensors.at(1));
  }
  CHECK((a.schedulers == b.schedulers));
  CHECK((a.loaders == b.loaders));
  CHECK((a.scaler == b.scaler));
  REQUIRE(a.customs.size() == b.customs.size());
  CHECK(std::get<std::string>(a.customs[0]) == std::get<std::string>(b.customs[0]));
  check_same(std::get<NamedTensors>(a.customs[1]), std::get<NamedTensors>(b.customs[1]));
  CHECK(torch::equal(a.random.cpu, b.random.cpu));
  REQUIRE(a.window.has_value());
  REQUIRE(b.window.has_value());
  CHECK(a.window->micro_batches == b.window->micro_batches);
  CHECK(a.window->of == b.window->of);
  CHECK(a.window->loss_unit == b.window->loss_unit);
  CHECK(a.window->count == b.window->count);
  CHECK(a.window->undivided == b.window->undivided);
  check_same(a.window->gradients, b.window->gradients);
}

}  // namespace

TEST_CASE("every kind of part is saved and read: tied weights, unusual shapes, 64 bits") {
  const SharedFolder folder;
  const auto content = small_content();
  save(folder.path / "c", content);
  check_same(load(folder.path / "c"), content);
  CHECK_FALSE(accelerate::archive::find_damage(folder.path / "c", true));
  const auto tied = load(folder.path / "c").models[0];
  CHECK(tied[0].second.const_data_ptr() == tied[1].second.const_data_ptr());
}

TEST_CASE("files have Hugging Face Accelerate's names; a part without a state has no file") {
  const SharedFolder folder;
  save(folder.path / "c", small_content());
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path / "c")) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl", "loader_state_1.bin",
                                       "manifest.json", "master_weights.safetensors", "model.safetensors",
                                       "model_1.safetensors", "optimizer.bin", "random_states_0.pkl", "scaler.pt",
                                       "scheduler.bin", "scheduler_2.bin", "window_0.bin"});
}

TEST_CASE("a model larger than max_shard_size is written to several files and an index by all ranks") {
  const SharedFolder folder;
  const auto content = small_content();
  const auto place = folder.path / "c";
  const checkpoint::SaveOptions options{.durable = false, .max_shard_size = "50"};
  save(place, content, options);
  std::vector<std::string> of_models;
  for (const auto& entry : fs::directory_iterator(place)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model")) of_models.push_back(name);
  }
  std::sort(of_models.begin(), of_models.end());
  CHECK(of_models == std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                              "model-00003-of-00003.safetensors", "model.safetensors.index.json",
                                              "model_1.safetensors"});
  CHECK_FALSE(accelerate::archive::find_damage(place, true));
  check_same(load(place), content);
  CHECK(checkpoint::read_weights(place, "load_model").size() == content.models[0].size());

  const auto files_of_first = [&] {
    std::vector<std::set<std::string>> found;
    for (const auto& part : accelerate::archive::manifest_of(place, "load_state").parts) {
      if (part.kind == "model" && part.index == 0) found.emplace_back(part.files.begin(), part.files.end());
    }
    return found;
  };
  const std::set<std::string> all(of_models.begin(), of_models.end() - 1);
  CHECK(files_of_first() == std::vector{all});
  for (const bool async : {false, true}) {
    CAPTURE(async);
    accelerate::comm::run_threads(
        2,
        [&](const accelerate::comm::Group& group) {
          checkpoint::CheckpointWriter saver(group);
          auto shared = options;
          shared.async = async;
          shared.share_work = true;
          saver.save(small_content(), {.place = place, .options = shared});
          saver.wait();
        },
        std::chrono::seconds(60));
    CHECK_FALSE(accelerate::archive::find_damage(place, true));
    CHECK(files_of_first() == std::vector{all});
    CHECK(checkpoint::read_weights(place, "load_model").size() == content.models[0].size());
  }
  save(place, content);  // as one file again, without remains of the others
  CHECK(fs::exists(place / "model.safetensors"));
  for (const std::string& name : all) CHECK_FALSE(fs::exists(place / name));

  CHECK_THROWS_WITH(save(folder.path / "d", content, {.max_shard_size = "much"}),
                    "save_state: max_shard_size is 'much', must be a number of bytes, or one with KB, MB, GB, KiB, MiB "
                    "or GiB (\"5GB\")");
  CHECK_FALSE(fs::exists(folder.path / "d"));
}

TEST_CASE("an asynchronous save writes the values at the time of the call") {
  const SharedFolder folder;
  auto content = small_content();
  const auto before = small_content();
  checkpoint::CheckpointWriter saver({});
  for (int i = 0; i < 3; ++i) {
    const auto place = folder.path / std::to_string(i);
    CHECK(saver.ready({.async = true}));
    saver.save(content, {.place = place, .options = {.async = true}});
    content.models[0][0].second.fill_(99);  // training continues
    content.optimizers[0].tensors[1][1].second.fill_(99);
    saver.wait();
    auto expected = before;
    expected.random = content.random;
    check_same(load(place), expected);
    content = small_content();
  }
}

TEST_CASE("reused memory of an asynchronous copy never belongs to two tensors, tied ones included") {
  const SharedFolder folder;
  auto content = small_content();
  content.optimizers[0].tensors[1][1].second.fill_(5);  // as large as the tied weights
  checkpoint::CheckpointWriter saver({});
  for (int i = 0; i < 2; ++i) {
    saver.save(content, {.place = folder.path / "c", .options = {.async = true, .durable = false}});
    saver.wait();
    check_same(load(folder.path / "c"), content);
  }
}

TEST_CASE("memory of an asynchronous save within InferenceMode can be reused outside") {
  const SharedFolder folder;
  const auto content = small_content();
  checkpoint::CheckpointWriter saver({});
  for (const bool inference : {true, false}) {
    {
      const c10::InferenceMode within(inference);
      saver.save(content, {.place = folder.path / "c", .options = {.async = true, .durable = false}});
    }
    saver.wait();
    check_same(load(folder.path / "c"), content);
  }
}

TEST_CASE("an asynchronous save ignores a change of the working directory") {
  const SharedFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path);
  checkpoint::CheckpointWriter saver({});
  saver.save(small_content(), {.place = "c", .options = {.async = true, .durable = false}});
  fs::current_path(before);
  saver.wait();
  CHECK_FALSE(accelerate::archive::find_damage(folder.path / "c", true));
}

TEST_CASE("the second of two jobs that save to one folder throws, and the first continues") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter first({}), second({});
  std::string message;
  const auto of_second = [&](const fs::path& making) {
    try {
      second.save(small_content(2), {.place = folder.path / "c"});
    } catch (const accelerate::Error& error) {
      message = error.what();
    }
    CHECK(message == "save_state: " + (folder.path / "c").string() + " is being saved to by another process (" +
                         making.string() + " is incomplete)");
  };
  first.save(small_content(), {.place = folder.path / "c", .options = {.durable = false}, .hook = of_second});
  check_same(load(folder.path / "c"), small_content());
  CHECK_NOTHROW(second.save(small_content(), {.place = folder.path / "c", .options = {.durable = false}}));
}

TEST_CASE("a folder that disappears during a save is an Error, and the previous checkpoint stays") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  save(folder.path / "c", small_content());
  for (const bool async : {false, true}) {
    CHECK_THROWS_WITH(
        [&] {
          saver.save(small_content(2), {.place = folder.path / "c",
                                        .options = {.async = async, .durable = false},
                                        .hook = [](const fs::path& making) { accelerate::base::remove_tree(making); }});
          saver.wait();
        }(),
        doctest::Contains("model.safetensors cannot be made: No such file or directory"));
    check_same(load(folder.path / "c"), small_content());
  }
}

TEST_CASE("a rank that ends before it has written its part is named at once, not after the timeout") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  std::vector<std::string> messages(2);
  accelerate::comm::run_threads(
      2,
      [&](const accelerate::comm::Group& group) {
        checkpoint::CheckpointWriter saver(group);
        // Its announcement is impossible, as for a killed writer.
        const auto silence = [&](const fs::path& making) {
          if (group.rank() == 1) fs::create_directory(making / ".part_1.saving");
        };
        saver.save(small_content(), {.place = place, .options = {.async = true}, .hook = silence});
        try {
          saver.wait();
        } catch (const accelerate::Error& error) {
          messages[static_cast<size_t>(group.rank())] = error.what();
        }
      },
      std::chrono::hours(1));
  CHECK(messages[0].ends_with("save_state: rank 1 of those that write to " + place.string() +
                              " ended before it had written its part"));
  CHECK(messages[1].find("/.part_1.saving cannot be made: File exists") != std::string::npos);
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("a running rank that does not write its part is named after the timeout") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  constexpr std::chrono::seconds timeout(2);
  std::string message;
  accelerate::comm::run_threads(
      2,
      [&](const accelerate::comm::Group& group) {
        checkpoint::CheckpointWriter saver(group);
        // It cannot write its part, and its end marker is invisible.
        const auto silence = [&](const fs::path& making) {
          if (group.rank() == 0) return;
          fs::create_directory(making / ".part_1.saving");
          fs::remove(making / ".working_1");
        };
        saver.save(small_content(), {.place = place, .options = {.async = true, .durable = false}, .hook = silence});
        if (group.rank() == 1) std::this_thread::sleep_for(timeout);  // so that both meet after it
        try {
          saver.wait();
        } catch (const accelerate::Error& error) {
          if (group.rank() == 0) message = error.what();
        }
      },
      timeout);
  CHECK(message.ends_with("save_state: rank 1 of those that write to " + place.string() +
                          " has not written its part after 2 s"));
}

TEST_CASE("a failure of an asynchronous save on one rank is thrown on both, and the previous checkpoint stays") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  save(place, small_content());
  std::vector<std::string> messages(2);
  accelerate::comm::run_threads(
      2,
      [&](const accelerate::comm::Group& group) {
        checkpoint::CheckpointWriter saver(group);
        auto content = small_content(2);
        if (group.rank() == 1) content.window->gradients[0].second = torch::eye(2).to_sparse();
        saver.save(content, {.place = place, .options = {.async = true}});
        try {
          saver.wait();
        } catch (const accelerate::Error& error) {
          messages[static_cast<size_t>(group.rank())] = error.what();
        }
      },
      std::chrono::seconds(60));
  CHECK(messages[0].ends_with(
      "save_state: another rank failed: save_state: model.1/w is sparse, only dense tensors can be saved"));
  CHECK(messages[1].ends_with("save_state: model.1/w is sparse, only dense tensors can be saved"));
  check_same(load(place), small_content());
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("each rank writes its part; rank 0 writes registered objects and models with buffers") {
  const SharedFolder folder;
  for (const bool async : {false, true}) {
    CAPTURE(async);
    const auto place = folder.path / (async ? "beside" : "at once");
    accelerate::comm::run_threads(
        2,
        [&](const accelerate::comm::Group& group) {
          auto content = small_content(static_cast<double>(group.rank()) + 1);
          content.models.resize(4, content.models[1]);
          content.with_buffers = {true, false, true, true};
          content.customs.resize(3, std::to_string(group.rank()));
          content.customs.emplace_back(std::to_string(group.rank()));
          checkpoint::CheckpointWriter saver(group);
          saver.save(content, {.place = place, .options = {.async = async, .durable = false, .share_work = true}});
          saver.wait();
        },
        std::chrono::seconds(60));
    const auto saved = load(place);
    CHECK(saved.models[0][0].second.mean().item<double>() == 1);
    CHECK(saved.models[1][0].second.mean().item<double>() == 4);  // twice the second rank's number
    CHECK(saved.models[2][0].second.mean().item<double>() == 2);
    CHECK(saved.models[3][0].second.mean().item<double>() == 2);
    CHECK(std::get<std::string>(saved.customs[2]) == "0");
    CHECK(std::get<std::string>(saved.customs[3]) == "0");
    CHECK_FALSE(accelerate::archive::find_damage(place, true));
  }
}

TEST_CASE("an asynchronous save without wait() completes or logs its error") {
  const SharedFolder folder;
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  const auto save_and_leave = [&](const checkpoint::CheckpointContent& content, const char* name) {
    checkpoint::CheckpointWriter saver({});
    saver.save(content, {.place = folder.path / name, .options = {.async = true, .durable = false}});
  };
  save_and_leave(small_content(), "good");
  auto content = small_content();
  content.customs.emplace_back(NamedTensors{{"sparse", torch::eye(2).to_sparse()}});
  save_and_leave(content, "bad");
  accelerate::base::set_log_handler(before);
  check_same(load(folder.path / "good"), small_content());
  CHECK(lines == std::vector<std::string>{"save_state: sparse is sparse, only dense tensors can be saved"});
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("a save is skipped on request while the previous one is being written") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  auto content = small_content();
  content.models[0].emplace_back("large", torch::zeros({8 << 20}));
  bool skipped = false;
  for (int i = 0; i < 50 && !skipped; ++i) {  // a thread may get no processor just then
    saver.save(content, {.place = folder.path / "c", .options = {.async = true}});
    skipped = !saver.ready({.async = true, .when_writer_busy = checkpoint::WriterBusyPolicy::skip});
    CHECK(saver.ready({.async = true}));
  }
  CHECK(skipped);
}

TEST_CASE("objects that Python registered become tensors by path; other values are named") {
  const SharedFolder folder;
  save(folder.path / "c", small_content());
  const auto custom = folder.path / "c" / "custom_checkpoint_1.pkl";
  const auto key = [](const char* words) { return std::string(words); };
  using checkpoint::py_dict, checkpoint::py_list, checkpoint::py_tuple;
  const auto write = [&](checkpoint::TorchFileWriter& writer, const accelerate::archive::PickleValue& root) {
    accelerate::archive::StringSink sink;
    writer.write(sink, root);
    std::ofstream(custom, std::ios::binary) << sink.text();
  };
  checkpoint::TorchFileWriter writer("save");
  write(writer,
        py_dict({{key("model"), py_dict({{key("w"), writer.tensor(torch::ones({2}), "w")}, {int64_t{7}, true}})},
                 {key("epoch"), int64_t{3}},
                 {key("loss"), 0.5},
                 {key("rates"), py_list({0.25, int64_t{2}})},
                 {key("steps"), py_tuple({int64_t{1}, true})},
                 {key("flags"), py_list({true, false})},
                 {key("empty"), py_list({})},
                 {key("groups"), py_list({py_dict({{key("lr"), 0.125}, {key("name"), key("head")}})})},
                 {key("none"), accelerate::archive::PickleNone{}},
                 {key("kind"), key("StepLR")},
                 {key("seed"), accelerate::archive::PickleBigInteger{std::string(9, '\1')}}}));
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  static_cast<void>(checkpoint::read_checkpoint(folder.path / "c", 1, torch::kCPU, "load_state"));  // only rank 0 logs
  const auto read = std::get<NamedTensors>(load(folder.path / "c").customs[1]);
  accelerate::base::set_log_handler(before);
  check_same(read, {{"model.w", torch::ones({2})},
                    {"model.7", torch::full({}, true, torch::kBool)},
                    {"epoch", torch::full({}, 3, torch::kLong)},
                    {"loss", torch::full({}, 0.5, torch::kDouble)},
                    {"rates", torch::tensor({0.25, 2.0}, torch::kDouble)},
                    {"steps", torch::tensor({1, 1}, torch::kLong)},
                    {"flags", torch::tensor({1, 0}, torch::kBool)},
                    {"empty", torch::empty({0}, torch::kDouble)},
                    {"groups.0.lr", torch::full({}, 0.125, torch::kDouble)}});
  CHECK(lines ==
        std::vector<std::string>{
            "load_state: " + custom.string() +
            ": skipped entries that are neither tensors nor numbers: 'groups.0.name' (a text), 'kind' (a text), 'seed' "
            "(a big integer)"});

  checkpoint::TorchFileWriter twice("save");
  write(twice, py_dict({{key("a"), py_dict({{key("b"), int64_t{1}}})}, {key("a.b"), int64_t{2}}}));
  CHECK_THROWS_WITH(static_cast<void>(load(folder.path / "c")),
                    ("load_state: " + custom.string() + ": two values have the name 'a.b'").c_str());
}

TEST_CASE("total_limit removes remains of killed processes and keeps files that belong to no checkpoint") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  const auto save_number = [&](int i) {
    saver.save(
        small_content(),
        {.place = folder.path / fmt::format("checkpoint_{}", i), .options = {.durable = false}, .total_limit = 1});
  };
  save_number(4);
  std::ofstream(folder.path / "checkpoint_4" / "scores.csv") << "mine";
  save(folder.path / "checkpoint_3", small_content());
  fs::rename(folder.path / "checkpoint_3", folder.path / "checkpoint_3.saving-old-17");
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  save_number(5);
  accelerate::base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"save_state: total_limit removed the checkpoint in " +
                                          (folder.path / "checkpoint_4").string() + ", scores.csv is not of it"});
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path)) {
    if (!entry.path().string().starts_with((folder.path / "checkpoint_5").string() + "/")) {
      names.insert(entry.path().filename().string());
    }
  }
  CHECK(names == std::set<std::string>{"checkpoint_4", "checkpoint_5", "scores.csv"});
}

TEST_CASE("an error of an asynchronous save is thrown once by the next wait, and no files remain") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  auto content = small_content();
  content.customs.emplace_back(NamedTensors{{"sparse", torch::eye(2).to_sparse()}});
  saver.save(content, {.place = folder.path / "c", .options = {.async = true}});
  CHECK_THROWS_WITH(saver.wait(), "save_state: sparse is sparse, only dense tensors can be saved");
  CHECK_NOTHROW(saver.wait());
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("files of hooks are part of the checkpoint, folders are refused") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  const auto save_with = [&](const std::function<void(const fs::path&)>& hook) {
    saver.save(small_content(), {.place = folder.path / "c", .options = {.durable = false}, .hook = hook});
  };
  save_with([](const fs::path& making) { std::ofstream(making / "notes.txt") << "by a hook"; });
  CHECK_FALSE(accelerate::archive::find_damage(folder.path / "c", true));
  std::ofstream(folder.path / "c" / "notes.txt") << "by A hook";
  CHECK(accelerate::archive::find_damage(folder.path / "c", true)->starts_with("notes.txt has checksum "));
  CHECK_THROWS_WITH(save_with([](const fs::path& making) { fs::create_directory(making / "sub"); }),
                    doctest::Contains("/sub in the checkpoint, which may contain only files"));
  CHECK(fs::exists(folder.path / "c" / "notes.txt"));
  std::ofstream(folder.path / "c" / "mine.txt") << "not of it";
  CHECK_THROWS_WITH(
      save_with([](const fs::path& making) { std::ofstream(making / "mine.txt") << "by a hook"; }),
      ("save_state: " + (folder.path / "c" / "mine.txt").string() +
       " does not belong to the old checkpoint and cannot be linked into the new one; move it: File exists")
          .c_str());
}

TEST_CASE("total_limit numbered checkpoints remain after a complete save; a limit below 1 is refused") {
  const SharedFolder folder;
  checkpoint::CheckpointWriter saver({});
  for (int i = 0; i < 12; ++i) {
    saver.save(
        small_content(),
        {.place = folder.path / ("checkpoint_" + std::to_string(i)), .options = {.durable = false}, .total_limit = 2});
  }
  CHECK(accelerate::archive::numbered_checkpoints(folder.path) ==
        std::vector<fs::path>{folder.path / "checkpoint_11", folder.path / "checkpoint_10"});
  CHECK_THROWS_WITH(saver.save(small_content(), {.place = folder.path / "checkpoint_12", .total_limit = 0}),
                    "save_state: total_limit is 0, must be at least 1");
}

TEST_CASE("every save removes remains of a killed clean-up, with and without a limit") {
  const SharedFolder folder;
  const auto at = [&](const char* name) { return folder.path / name; };
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder.path)) all.insert(entry.path().filename().string());
    return all;
  };
  for (const bool async : {false, true}) {
    CAPTURE(async);
    save(at("checkpoint_0"), small_content());
    save(at("last"), small_content());
    fs::remove(at("checkpoint_0") / "manifest.json");
    fs::rename(at("checkpoint_0"), at("checkpoint_0.saving-old-17"));
    fs::rename(at("last"), at("checkpoint_1.saving-0123abcd"));
    fs::create_directories(at("checkpoint_1.saving-for-later"));
    save(at(async ? "checkpoint_3" : "best"), small_content(), {.async = async});
    CHECK(names() == std::set<std::string>{async ? "checkpoint_3" : "best", "checkpoint_1.saving-for-later"});
    accelerate::base::remove_tree(at(async ? "checkpoint_3" : "best"));
  }
}

TEST_CASE("without a manifest the number of steps is the first optimizer's count") {
  const SharedFolder folder;
  auto content = small_content();
  const auto read = [&](const char* name) {
    save(folder.path / name, content);
    fs::remove(folder.path / name / "manifest.json");
    return checkpoint::read_checkpoint(folder.path / name, 0, torch::kCPU, "load_state");
  };
  const auto adam = read("adam");
  CHECK(adam.content.step == 3);
  CHECK(adam.knows_step);
  content.optimizers[0].tensors[1] = {{"momentum_buffer", torch::ones({2, 3})}};
  const auto sgd = read("sgd");
  CHECK(sgd.content.step == 0);
  CHECK_FALSE(sgd.knows_step);
  const auto refused = [&](const char* name, const char* what) {
    CHECK_THROWS_WITH(read(name), ("load_state: " + (folder.path / name / "optimizer.bin").string() +
                                   ": 'step' of the state of parameter 1 is " + what + ", expected one count")
                                      .c_str());
  };
  content.optimizers[0].tensors[1] = {{"step", torch::ones({2})}};
  refused("two", "[2]");
  content.optimizers[0].tensors[1] = {{"step", torch::full({}, -1.0)}};
  refused("below", "-1");
}
