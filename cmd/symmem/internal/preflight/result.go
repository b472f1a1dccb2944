package preflight

import "symmem/cmd/symmem/internal/doctor"

// RankResult holds the results of one rank.
type RankResult struct {
	Rank int `json:"rank"`
	// Node is the host name.
	Node string `json:"node"`
	// GPU identifies the rank's GPU, or is empty on the host backend.
	GPU     string `json:"gpu,omitempty"`
	Device  string `json:"device"`
	Backend string `json:"backend"`
	Source  string `json:"source"`
	// Error is the error that ended this rank's checks early.
	Error string `json:"error,omitempty"`
	// Blamed lists the ranks that Error blames.
	Blamed []int `json:"lost,omitempty"`
	// DeadlinePassed is set if the deadline of the whole preflight had passed when the error occurred.
	DeadlinePassed bool `json:"expired,omitempty"`
	// Calls holds the results of the collectives on each path.
	Calls []doctor.TrialCall `json:"calls"`
	// Links holds the results for the links to ranks with higher numbers.
	Links []Link `json:"links"`
	// Machine holds the node's problems, which only the node's first rank reports.
	Machine []doctor.Finding `json:"machine,omitempty"`
}

// Link holds the results of messages that two ranks sent to each other.
type Link struct {
	From int `json:"from"`
	To   int `json:"to"`
	// BytesPerS is the best speed measured in one direction.
	BytesPerS float64 `json:"bytes_per_s"`
	// Wrong is the number of wrong bytes that either rank received.
	Wrong int64 `json:"wrong"`
}
