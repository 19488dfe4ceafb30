// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "accelerate/archive/checksum.hpp"
#include "tests/launch/commands/files.hpp"
#include "tests/launch/commands/program.hpp"

using testing::floats;
using testing::read_file;
using testing::run_program;
using testing::save_checkpoint;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

namespace {

testing::Ran checkpoint(const std::vector<std::string>& arguments) {
  return run_program("accelerate_checkpoint", arguments);
}

const testing::SmallTensor weight{"weight", "F32", {2, 2}, floats({1, 2, 3, 4})};
const testing::SmallTensor moved{"weight", "F32", {2, 2}, floats({1, 2.5, 3, 4})};
const testing::SmallTensor bias{"bias", "F32", {2}, floats({1, 2})};

struct Checkpoints : TemporaryFolder {
  Checkpoints() {
    save_checkpoint(path / "checkpoint_2", {weight, bias}, 200);
    save_checkpoint(path / "checkpoint_10", {moved}, 1000);
  }
};

}  // namespace

TEST_CASE("inspect lists the content of a checkpoint, and with --tensors each tensor") {
  const Checkpoints at;
  const std::string folder = at / "checkpoint_2";
  const auto size = fs::file_size(folder + "/model.safetensors");
  const std::string sum = accelerate::archive::checksum_of(read_file(folder + "/model.safetensors"));
  const auto ran = checkpoint({"inspect", "--tensors", folder});
  CHECK(ran.err.empty());
  CHECK(ran.code == 0);
  CHECK(ran.out == folder + ": step 200, epoch 1, 2 ranks, " + std::to_string(size) +
                       " B\n"
                       "written by accelerate 0.1.0, format 1\n"
                       "\n"
                       "parts:\n"
                       "  model 0  model.safetensors\n"
                       "\n"
                       "file               bytes          checksum\n"
                       "model.safetensors    " +
                       std::to_string(size) + "  " + sum +
                       "\n"
                       "\n"
                       "tensors:\n"
                       "  weight F32 [2, 2] in model.safetensors\n"
                       "  bias F32 [2] in model.safetensors\n");
  CHECK(checkpoint({"inspect", folder}).out == ran.out.substr(0, ran.out.find("\ntensors:")));
}

TEST_CASE("inspect of a folder of checkpoints prints a line for each, the highest first, with any damage") {
  const Checkpoints at;
  fs::remove(at.path / "checkpoint_10" / "model.safetensors");
  const auto ran = checkpoint({"inspect", at.path.string()});
  CHECK(ran.code == 0);
  CHECK(ran.out ==
        "checkpoint_10: model.safetensors is missing\n"
        "checkpoint_2: step 200, epoch 1, " +
            std::to_string(fs::file_size(at.path / "checkpoint_2" / "model.safetensors")) + " B in 1 file\n");
}

TEST_CASE("verify detects a flipped bit, a missing file and a header that contradicts the manifest") {
  const Checkpoints at;
  const std::string two = at / "checkpoint_2";
  const std::string ten = at / "checkpoint_10";
  const std::string model = two + "/model.safetensors";
  const std::string whole = read_file(model);
  const std::string size = std::to_string(whole.size());
  const std::string size_of_ten = std::to_string(fs::file_size(ten + "/model.safetensors"));
  const auto good = checkpoint({"verify", at.path.string()});
  CHECK(good.code == 0);
  CHECK(good.out == ten + ": complete, 1 file, " + size_of_ten + " B\n" + two + ": complete, 1 file, " + size + " B\n");

  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_file(model, flipped);
  const auto found = checkpoint({"verify", two});
  CHECK(found.code == 1);
  CHECK(found.out == two + ": model.safetensors has checksum " + accelerate::archive::checksum_of(flipped) +
                         ", expected " + accelerate::archive::checksum_of(whole) + ": its bytes were changed\n");
  const auto quick = checkpoint({"verify", "--quick", two});
  CHECK(quick.code == 0);
  CHECK(quick.out == two + ": complete, 1 file, " + size + " B (checksums were not compared)\n");

  std::string renamed = whole;
  renamed.replace(renamed.find("\"bias\""), 6, "\"bios\"");
  write_file(model, renamed);
  CHECK(checkpoint({"verify", "--quick", two}).out == two + ": model.safetensors lacks bias, which is model.0/bias\n");
  fs::remove(model);
  CHECK(checkpoint({"verify", two}).out == two + ": model.safetensors is missing\n");
  write_file(two + "/manifest.json", "{");
  const auto broken = checkpoint({"verify", two});
  CHECK(broken.code == 1);
  CHECK(broken.out.starts_with(two + ": accelerate_checkpoint: " + two + "/manifest.json: the manifest is not JSON: "));
}

TEST_CASE("diff prints the differing tensors with distance and position, and tensors of only one side") {
  const Checkpoints at;
  const auto ran = checkpoint({"diff", at / "checkpoint_2", at / "checkpoint_10"});
  CHECK(ran.code == 1);
  CHECK(ran.err.empty());
  CHECK(ran.out ==
        "step: 200, 1000\n"
        "model.safetensors: weight 1 of 4 elements differ, most by 0.5: 2, 2.5 at 1\n"
        "model.safetensors: bias is only in A\n");
  const auto same = checkpoint({"diff", at / "checkpoint_2", at / "checkpoint_2"});
  CHECK(same.code == 0);
  CHECK(same.out.empty());
  CHECK(
      checkpoint({"diff", "--most", "1", at / "checkpoint_2/model.safetensors", at / "checkpoint_10/model.safetensors"})
          .out ==
      "model.safetensors: weight 1 of 4 elements differ, most by 0.5: 2, 2.5 at 1\n"
      "model.safetensors: and 1 more difference\n");
}

TEST_CASE("diff accepts folders without a manifest, other shapes and unreadable files") {
  const TemporaryFolder a;
  const TemporaryFolder b;
  write_file(a.path / "m.safetensors", testing::safetensors_of({{"w", "F32", {2}, floats({1, 2})}}));
  write_file(b.path / "m.safetensors", testing::safetensors_of({{"w", "F32", {1, 2}, floats({1, 2})}}));
  write_file(a.path / "notes.txt", "one");
  write_file(b.path / "notes.txt", "two!");
  write_file(b.path / "z.txt", "");
  const auto ran = checkpoint({"diff", a.path.string(), b.path.string()});
  CHECK(ran.code == 1);
  CHECK(ran.out ==
        "m.safetensors: w is F32 [2], F32 [1, 2]\n"
        "notes.txt: the bytes differ (3, 4)\n"
        "z.txt: only in B\n");
}

TEST_CASE("an invalid call exits with code 2 and prints the remedy") {
  const TemporaryFolder at;
  CHECK(checkpoint({}).code == 2);
  CHECK(checkpoint({}).err == "accelerate_checkpoint: A subcommand is required; see accelerate_checkpoint --help\n");
  const auto empty = checkpoint({"inspect", at.path.string()});
  CHECK(empty.code == 2);
  CHECK(empty.err ==
        "accelerate_checkpoint: " + at.path.string() + " has no manifest.json and no folder checkpoint_N\n");
  CHECK(checkpoint({"verify", at.path.string()}).err == empty.err);
  write_file(at.path / "f", "");
  const auto mixed = checkpoint({"diff", at.path.string(), at / "f"});
  CHECK(mixed.code == 2);
  CHECK(mixed.err == "accelerate_checkpoint: " + at.path.string() + " is a folder, " + (at / "f") +
                         " is not a folder; pass two folders or two files\n");
  const auto help = checkpoint({"diff", "--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("Compares two checkpoints, models' folders or files.") != std::string::npos);
}
