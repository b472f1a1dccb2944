// Package tuning chooses the path of a collective from a table of measured thresholds.
//
// NCCL uses its window kernels whenever it can, even at sizes where they are slower, and symmem's
// kernels are not the fastest at every size either. For an operation on a number of ranks and
// machines, a [Table] contains the sizes up to which each path is the fastest. Its choices depend
// only on facts that are the same on all ranks of a group, and the ranks compare [Table.Digest].
//
// There are two decisions. First, [Table.ChooseDirect] decides whether a call takes the direct
// path. Its rules name a memory: symmetric buffers (in windows, which all ranks have registered) or
// any other buffers. Then, [Table.Choose] chooses between the plain and the window path for
// symmetric buffers. An operation without a specific rule follows the general rule for its memory
// and the table's Otherwise.
//
// # Format
//
// [Table.Encode] writes JSON with the measured times of each step, which people can read and edit.
// [Decode] reads it and refuses unknown fields:
//
//	{
//	  "version": 4,
//	  "about": "...",                how to read the file
//	  "device": "NVIDIA H200",       as in driver.Info
//	  "library": "NCCL 2.28.9",      the library that ran the collectives
//	  "date": "2026-11-20",
//	  "source": "...",               how the times were measured
//	  "data_type": "bfloat16",       the element type of the measured times
//	  "otherwise": "plain",          the path of operations without a rule
//	  "rules": [
//	    {"memory": "any", "steps": [{"path": "other"}]},
//	    {"operation": "AllReduce", "ranks": 4, "machines": 1, "memory": "symmetric", "steps": [
//	      {"up_to": "1MiB", "path": "direct", "measured": [
//	        {"bytes": "1KiB", "plain_us": 13, "window_us": 7.4, "direct_us": 3.1}
//	      ]},
//	      {"path": "other"}
//	    ]},
//	    {"operation": "AllReduce", "ranks": 4, "machines": 1, "steps": [
//	      {"up_to": "64KiB", "path": "window", "measured": [
//	        {"bytes": "1KiB", "plain_us": 13, "window_us": 7.4, "noise_percent": 0.8},
//	        {"bytes": "1KiB", "in_place": true, "plain_us": 13, "window_us": 7.2}
//	      ]},
//	      {"path": "plain"}
//	    ]}
//	  ]
//	}
//
// A rule with a memory decides about the direct path. A call that no such rule covers does not take
// the direct path. Without operation, ranks and machines, the rule covers every operation and group
// that has no specific rule for that memory.
//
// The size of a call is that of its larger buffer, for example the output of an all-gather. Sizes
// are whole numbers of bytes, or numbers with a unit: B, KiB, MiB or GiB. A step covers sizes up to
// and including up_to. The last step has no up_to and covers all larger sizes. Choices depend only
// on otherwise, on the fields of a rule before its steps, and on the up_to and path of each step.
package tuning
