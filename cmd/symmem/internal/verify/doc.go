// Package verify is the workload of "symmem verify": all-reduces over symmetric memory whose every
// element is checked on every rank.
//
// What a run does is worked out before it starts, as a program: a list of steps on numbered slots
// (allocate, free, fill, reduce) that is the same on every rank because it depends on the Config
// alone. Rank carries it out, and merge joins what the ranks found to one Report. Only the noise of
// Config.Skew is a rank's own, and it never touches the symmetric pool.
//
// Values are chosen so that a mistake shows: rank r fills a buffer with value * (r + 1), and the
// value differs from one all-reduce to the next, so that neither another rank's buffer nor another
// case's, nor what an earlier round left behind, gives the expected sum.
package verify
