// Package tuning chooses the path of a collective from a table of measured thresholds. For an
// operation on a number of ranks and machines, a [Table] contains the sizes up to which each path
// is the fastest. The size of a call is the size of its larger buffer, for example the output of an
// all-gather. All ranks make the same choices, and compare [Table.Digest].
package tuning
