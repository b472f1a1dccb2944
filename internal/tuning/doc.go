// Package tuning chooses the path of collectives.
//
// A library that takes its window kernels whenever it can is slower with windows than without at
// some sizes, and kernels of our own have limits, too. So a [Table] says for an operation and a
// type of elements, on so many ranks of so many machines, in place or not, up to which size each
// path is the faster one. It is a pure function of things that all ranks of a group know alike, and
// [Table.Digest] is what ranks compare to be sure that they have the same one.
//
// There are two decisions, which rules of two kinds make. [Table.ChooseDirect] comes first, whether
// a call takes the direct path, if it can: by rules that say for which memory they are, symmetric
// buffers (both lie in windows) or any others. [Table.Choose] says which of the plain and the
// window path a call on symmetric buffers takes that does not go direct.
//
// # Where tables come from
//
// [DeriveRules] and [DeriveDirect] make the rules of a table from measured times, by one stated
// rule; the command "symmem tune" measures, and [Builtin] holds figures measured before. Where a
// table has no rule, a general one decides about the direct path, and its Otherwise about the other
// two; the [Reason] says so.
//
// # Format
//
// [Table.Encode] writes JSON that people can read and edit, with the measured times next to each
// row; [Decode] reads it, and refuses whatever it does not know:
//
//	{
//	  "version": 3,
//	  "about": "...",                what the format means, for who opens the file
//	  "device": "NVIDIA H200",       as driver.Info names it
//	  "library": "NCCL 2.28.9",      what ran the collectives
//	  "date": "2026-11-20",
//	  "source": "...",               who measured, and how
//	  "otherwise": "plain",          the path where no rule applies
//	  "rules": [
//	    {"memory": "any", "steps": [{"path": "other"}]},
//	    {"operation": "AllReduce", "ranks": 4, "machines": 1, "memory": "symmetric", "steps": [
//	      {"up_to": "1MiB", "path": "direct", "measured": [
//	        {"bytes": "1KiB", "plain_us": 13, "window_us": 7.4, "direct_us": 3.1}
//	      ]},
//	      {"path": "other"}
//	    ]},
//	    {"operation": "AllReduce", "ranks": 4, "machines": 1, "measured_type": "bfloat16", "steps": [
//	      {"up_to": "64KiB", "path": "window", "measured": [
//	        {"bytes": "1KiB", "plain_us": 13, "window_us": 7.4, "noise_percent": 0.8}
//	      ]},
//	      {"path": "plain"}
//	    ]},
//	    {"operation": "AllGather", "ranks": 4, "machines": 1, "in_place": true, "steps": [
//	      {"path": "plain"}
//	    ]},
//	    {"operation": "AllReduce", "data_type": "float32", "ranks": 4, "machines": 1, "steps": [
//	      {"path": "window"}
//	    ]}
//	  ]
//	}
//
// A rule with memory is about the direct path. One without operation, ranks and machines is about
// all operations and groups that have none of their own for that memory. Without any rule for it a
// call does not go direct.
//
// A rule with data_type is about elements of that type alone. One without is about all types that
// have none of their own for the same operation, group, memory and half. Times in a rule
// without it say once for all of which type they are, in measured_type, so that nobody compares
// them with times of another one.
//
// A rule without in_place is about both halves of an operation: calls that work in place, and
// calls that do not. With true or false it is about that half alone, and the other one has a rule
// of its own, or none. Times in a rule about both halves that are of work in place say so, with
// "in_place": true after the size.
//
// Sizes count the larger buffer of a call: the output of an all-gather, the input of a
// reduce-scatter, as nccl-tests has it. They are whole numbers of bytes, or such numbers with a
// unit: B, KiB, MiB or GiB. A step holds sizes up to and including up_to; the last step has none
// and holds all larger sizes. Only otherwise, what a rule has before its steps, and the steps'
// up_to and path decide; everything else explains.
package tuning
