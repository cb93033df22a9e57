// A count trie over the suffixes of token sequences, cut at a depth.
//
// Every string of up to `depth` tokens that occurs in a sequence has a node with the number of its occurrences; what
// follows the most frequent child at each node is what the sequences make likely. A node with a single occurrence is
// a leaf that names the place and has no children before a second occurrence comes by: most strings of real text are
// leaves after a few tokens, and a sequence that grows alone costs nothing.
//
// Every node names a place where its string occurs, so a trie of one sequence is an index for prompt lookup as well.
//
// Ideas: SuffixDecoding (Oliaro et al. 2411.04975), Prompt Lookup Decoding (Saxena 2023). Obvious twin:
// parlay.proposers.suffix_tree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

namespace parlay {

struct Guess {
  std::vector<int32_t> tokens;
  std::vector<float> probs;  // that all tokens up to this one follow
  float score = 0;           // their sum: tokens that are expected to be right
  uint32_t match = 0;        // tokens of context that were found
  uint32_t node = 0;         // of these
};

// What may follow, as a tree whose likeliest path comes first.
struct Branches {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // -1 for those that follow at once
  std::vector<float> probs;      // that all tokens up to this one follow
  float score = 0;               // of the best chain, by which matches are compared
};

struct Limits {
  uint32_t most;      // tokens
  float factor;       // and this many for each token of the match
  float offset;       // and these besides
  float min_prob;     // of all tokens so far
};

// How many places come after so many. A large trie lives long, and is to hold little that is free.
inline size_t more_than(size_t places) { return places < 1 << 12 ? std::max<size_t>(64, 2 * places) : places + places / 5; }

// Makes room for one more.
template <class T>
void make_room(std::vector<T>& items) {
  if (items.size() == items.capacity()) items.reserve(more_than(items.size()));
}

// Open addressing, linear probing, deletion by moving back: (parent, token) to child.
class ChildTable {
 public:
  uint32_t find(uint32_t parent, int32_t token) const;
  void insert(uint32_t parent, int32_t token, uint32_t child);
  void erase(uint32_t parent, int32_t token);
  size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t child = 0;  // 0: free
  };
  static uint64_t key_of(uint32_t parent, int32_t token) { return uint64_t(parent) << 32 | uint32_t(token); }
  size_t home(uint64_t key) const;
  size_t after(size_t place) const;
  size_t distance(size_t from, size_t to) const;
  void grow();

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

class SuffixTrie {
 public:
  // Strings of up to `depth` tokens are counted. `lookup` finds the first place of a string, or the `latest`.
  explicit SuffixTrie(uint32_t depth, bool latest = false);
  SuffixTrie(const SuffixTrie&) = delete;

  // Begins an empty sequence and returns its number.
  uint32_t begin();
  // Counts the strings that end with each of these tokens.
  void append(uint32_t sequence, const int32_t* tokens, size_t count);
  // The sequence will not grow any more.
  void end(uint32_t sequence);
  // Uncounts the strings that begin at the next `count` places of a sequence, first places first; once all are
  // uncounted the sequence is gone and its number may be given out again. Returns whether it is gone.
  bool remove(uint32_t sequence, size_t count);

  // Guesses what follows a growing sequence of this trie, by its last tokens.
  Guess guess(uint32_t sequence, const Limits& limits) const;
  // Guesses what follows a text that need not be of this trie.
  Guess guess_after(const int32_t* tokens, size_t count, const Limits& limits) const;

  // The same as a tree: of the match that `guess` follows, the likeliest strings that went on there.
  Branches branch(uint32_t sequence, const Limits& limits) const;
  Branches branch_after(const int32_t* tokens, size_t count, const Limits& limits) const;

  // Up to `most` of the tokens that followed where the longest string of `least` to `longest` tokens, or to `depth`,
  // that ends a growing sequence occurred before; none if none did. Only in a trie that never held two sequences.
  std::vector<int32_t> lookup(uint32_t sequence, uint32_t least, size_t most, uint32_t longest) const;

  // What the trie holds, in bytes.
  size_t bytes() const;
  uint32_t depth() const { return depth_; }

  // How often a string of up to `depth` tokens occurs.
  uint32_t count(const int32_t* tokens, size_t length) const;

 private:
  struct Node {
    uint32_t count = 0;
    int32_t token = 0;
    uint32_t parent = 0;
    uint32_t next = 0, previous = 0;  // siblings
    uint32_t owner = 0;               // a leaf's sequence; 0: no leaf
    uint32_t start = 0;               // where the string begins: a leaf's only place, or one of those that go on
    uint32_t first = 0, best = 0;  // children: all in a list, and the most frequent
  };

  struct Sequence {
    explicit Sequence(std::pmr::memory_resource* memory) : tokens(memory), cursors(memory) {}
    std::pmr::vector<int32_t> tokens;
    std::pmr::vector<uint32_t> cursors;  // the node of the string that begins at `start`, at index start % depth
    uint32_t removed = 0;           // strings that begin before are not counted any more
    bool growing = false;
    bool used = false;
  };

  static constexpr uint32_t kRoot = 1;
  static constexpr size_t kLargestTogether = 1 << 16, kMostTogether = 256;  // bytes of a block; blocks

  void push(uint32_t number, int32_t token);
  void renew_places(const Sequence& sequence);
  void remove_from(uint32_t number, uint32_t start);
  uint32_t make_leaf(uint32_t parent, int32_t token, uint32_t owner, uint32_t start);
  void grow_leaf(uint32_t leaf, uint32_t length);
  void shrink(uint32_t node);
  void unlink(uint32_t node);
  void find_best(uint32_t node);
  uint32_t* cursor(uint32_t number, uint32_t start);
  uint32_t find(const int32_t* tokens, size_t length) const;
  uint32_t longest(uint32_t match, const Limits& limits) const;
  void follow(uint32_t node, uint32_t match, const Limits& limits, Guess& best) const;
  Branches grow(const Guess& best, const Limits& limits) const;
  std::vector<uint32_t> likely(uint32_t node, float least) const;

  uint32_t depth_;
  bool latest_;
  // A trie may live long. Its many small blocks lie together: scattered among large blocks of others that come and go
  // they would keep those from being used again.
  std::pmr::unsynchronized_pool_resource memory_{std::pmr::pool_options{kMostTogether, kLargestTogether}};
  std::vector<Node> nodes_;  // 0 is nothing, 1 the root
  std::vector<uint32_t> free_nodes_;
  std::vector<Sequence> sequences_;  // 0 is nothing
  std::vector<uint32_t> free_sequences_;
  ChildTable children_;
  size_t tokens_ = 0;
};

}  // namespace parlay
