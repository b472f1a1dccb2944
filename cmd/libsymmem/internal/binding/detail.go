package binding

import (
	"encoding/json"
	"errors"

	"symmem"
)

// errorDetail describes an error for programs. The kind of the error determines which of the
// pointers is set. For other kinds, all are nil.
type errorDetail struct {
	Code       int               `json:"code"`
	Name       string            `json:"name"`
	Message    string            `json:"message"`
	Divergence *divergenceDetail `json:"divergence,omitempty"`
	Timeout    *timeoutDetail    `json:"timeout,omitempty"`
	RankLost   *lostDetail       `json:"rank_lost,omitempty"`
	Memory     *memoryDetail     `json:"memory,omitempty"`
}

// divergenceDetail describes how ranks differ in their calls, or in their events, such as the
// allocations in a pool. Ranks are those of the world.
type divergenceDetail struct {
	Group      string `json:"group"`
	Kind       string `json:"kind"` // a symmem.DivergenceKind, "call", "place" or "messages"
	GroupRanks []int  `json:"members,omitempty"`
	Pool       uint64 `json:"pool"` // id of the pool, or 0 if no pool is concerned
	PoolName   string `json:"pool_name,omitempty"`
	// The first difference is from FirstPosition to LastPosition in the history of a pool, or in the
	// sequence of messages. LastPosition is larger if a part of the history was discarded.
	FirstPosition uint64          `json:"position"`
	LastPosition  uint64          `json:"last"`
	DeviantRanks  []int           `json:"deviant"` // those that differ from the majority, if any
	AbsentRanks   []int           `json:"absent"`  // those that took no part in the comparison
	Reason        string          `json:"why"`
	Variants      []variantDetail `json:"variants"`
	// CallsByRank holds each rank's current call, if ranks wait for each other in different calls.
	CallsByRank map[int]string `json:"elsewhere,omitempty"`
	// Messages lists the messages on which sender and receiver disagree. Reason describes how.
	Messages []symmem.MessageEnds `json:"messages,omitempty"`
}

// variantDetail describes the event of the ranks that have the same event.
type variantDetail struct {
	Ranks          []int    `json:"ranks"`
	Event          string   `json:"event"`
	CallSite       string   `json:"site"`
	PreviousEvents []string `json:"before,omitempty"`
}

type timeoutDetail struct {
	InCall       string         `json:"doing"` // the call that timed out
	WaitedMS     int64          `json:"waited_ms"`
	MissingRanks []int          `json:"missing"`
	CallsByRank  map[int]string `json:"activity"` // current calls of missing ranks, if known
	// NCCLCounts holds NCCL's operation counts if they differ between ranks.
	NCCLCounts string `json:"counts,omitempty"`
	// NeverJoined is set if the missing ranks did not arrive when a world or group was opened.
	NeverJoined bool `json:"absent,omitempty"`
}

type lostDetail struct {
	InCall string `json:"doing"`
	Ranks  []int  `json:"ranks"`
}

type memoryDetail struct {
	RequestedBytes int64 `json:"requested"`
}

// Detail returns an error and its code as JSON.
func Detail(code Code, err error) string {
	d := errorDetail{Code: int(code), Name: code.String(), Message: code.Message(err)}
	d.fill(err)
	text, err := json.Marshal(d)
	if err != nil {
		return "{}" // cannot happen: the fields are numbers and strings
	}

	return string(text)
}

// fill sets the field for the kind of err. An error can have several kinds, so fill checks them in
// the same order as CodeOf.
func (d *errorDetail) fill(err error) {
	var divergence *symmem.DivergenceError
	var mismatch *symmem.MismatchError
	var deadlock *symmem.DeadlockError
	var rankLost *symmem.RankLostError
	var timeout *symmem.TimeoutError
	var outOfMemory *symmem.OutOfMemoryError
	var messages *symmem.MessageError
	switch {
	case errors.As(err, &divergence):
		d.Divergence = divergenceOf(divergence)
	case errors.As(err, &mismatch):
		d.Divergence = divergenceWithoutVariants("call")
		d.Divergence.Group = mismatch.Group
		d.Divergence.DeviantRanks = nonNilCopy(mismatch.Others)
	case errors.As(err, &deadlock):
		d.Divergence = divergenceWithoutVariants("place")
		d.Divergence.CallsByRank = deadlock.Activity
	case errors.As(err, &messages):
		d.Divergence = divergenceWithoutVariants("messages")
		d.Divergence.Group = messages.Group
		d.Divergence.FirstPosition = messages.Number
		d.Divergence.LastPosition = messages.Number
		d.Divergence.Reason = string(messages.Fault)
		d.Divergence.Messages = messages.Ends
	case errors.As(err, &rankLost):
		d.RankLost = &lostDetail{InCall: rankLost.InCall, Ranks: nonNilCopy(rankLost.Ranks)}
	case errors.As(err, &timeout):
		d.Timeout = &timeoutDetail{
			InCall: timeout.InCall, WaitedMS: timeout.Waited.Milliseconds(),
			MissingRanks: nonNilCopy(timeout.Missing),
			CallsByRank:  timeout.Activity, NCCLCounts: timeout.Counts,
			NeverJoined: errors.As(err, new(*symmem.AbsentError)),
		}
	case errors.As(err, &outOfMemory):
		d.Memory = &memoryDetail{RequestedBytes: outOfMemory.Requested}
	}
}

// divergenceWithoutVariants returns a description whose lists are empty. JSON encodes them as [].
func divergenceWithoutVariants(kind string) *divergenceDetail {
	return &divergenceDetail{
		Kind: kind, DeviantRanks: []int{}, AbsentRanks: []int{}, Variants: []variantDetail{},
	}
}

func divergenceOf(e *symmem.DivergenceError) *divergenceDetail {
	d := &divergenceDetail{
		Group: e.Group, Kind: string(e.Kind), Pool: e.PoolID, PoolName: e.Pool,
		FirstPosition: e.Position, LastPosition: max(e.Position, e.Last), Reason: e.Why,
		DeviantRanks: nonNilCopy(e.Deviant), AbsentRanks: nonNilCopy(e.Absent),
		GroupRanks: nonNilCopy(e.Members),
	}
	for _, side := range e.Sides {
		d.Variants = append(d.Variants, variantDetail{
			Ranks: side.Ranks, Event: side.Event, CallSite: side.Site, PreviousEvents: side.Before,
		})
	}

	return d
}

// nonNilCopy copies a list. It never returns nil, because JSON encodes nil as null.
func nonNilCopy(list []int) []int { return append([]int{}, list...) }
