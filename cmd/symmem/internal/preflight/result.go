package preflight

import "symmem/cmd/symmem/internal/doctor"

// RankResult holds the results of one rank.
type RankResult struct {
	Rank int `json:"rank"`
	// Node is the name of the machine.
	Node string `json:"node"`
	// GPU identifies the rank's GPU. It is empty on the host backend.
	GPU     string `json:"gpu,omitempty"`
	Device  string `json:"device"`
	Backend string `json:"backend"`
	Source  string `json:"source"`
	// Error is the error that ended this rank's checks early.
	Error string `json:"error,omitempty"`
	// Blamed lists the ranks that Error blames.
	Blamed []int `json:"lost,omitempty"`
	// DeadlinePassed is set if the error occurred after the deadline of the whole preflight.
	DeadlinePassed bool               `json:"expired,omitempty"`
	Calls          []doctor.TrialCall `json:"calls"`
	// Links holds the results of the links to ranks with higher numbers.
	Links []Link `json:"links"`
	// Machine holds the problems of the node. Only the first rank of the node reports them.
	Machine []doctor.Finding `json:"machine,omitempty"`
}

// Link holds the results of messages that two ranks sent to each other.
type Link struct {
	From int `json:"from"`
	To   int `json:"to"`
	// BytesPerS is the best measured speed in one direction.
	BytesPerS float64 `json:"bytes_per_s"`
	// Wrong is the number of wrong bytes that From received. If To receives wrong bytes, To reports
	// an error.
	Wrong int64 `json:"wrong"`
}
