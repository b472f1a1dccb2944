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
	Error       string `json:"error,omitempty"`
	BlamedRanks []int  `json:"lost,omitempty"`
	// IsDeadlinePassed is set if the error occurred after preflight's deadline.
	IsDeadlinePassed bool               `json:"expired,omitempty"`
	Calls            []doctor.TrialCall `json:"calls"`
	// Links holds the results of the links to ranks with higher numbers.
	Links []Link `json:"links"`
	// NodeProblems holds the problems of the node. Only the first rank of the node reports them.
	NodeProblems []doctor.Finding `json:"machine,omitempty"`
}

// Link holds the results of messages that two ranks sent to each other.
type Link struct {
	From int `json:"from"`
	To   int `json:"to"`
	// BytesPerSecond is the best measured speed in one direction.
	BytesPerSecond float64 `json:"bytes_per_s"`
	// WrongBytes is the number of wrong bytes that From received. If To receives wrong bytes, To
	// reports an error.
	WrongBytes int64 `json:"wrong"`
}
