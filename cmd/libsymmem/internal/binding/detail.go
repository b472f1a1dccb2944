package binding

import (
	"encoding/json"
	"errors"

	"symmem"
)

// errorDetail is an error as JSON. If rank 2 allocates 1024 bytes where ranks 0 and 1 allocate 512,
// for example, all ranks get:
//
//	{"code": 12, "name": "DIVERGENCE", "message": "...", "divergence": {"group": "world", ...,
//	  "kind": "placement", "deviant": [2], "variants": [
//	    {"ranks": [0, 1], "event": "alloc 512 B ..."}, {"ranks": [2], "event": "alloc 1024 B ..."}]}}
//
// Ranks are ranks of the world, not of a group.
type errorDetail struct {
	Code    int    `json:"code"`
	Name    string `json:"name"` // Code as text
	Message string `json:"message"`

	// At most one of these fields is set.
	Divergence *divergenceDetail `json:"divergence,omitempty"`
	Timeout    *timeoutDetail    `json:"timeout,omitempty"`
	RankLost   *lostDetail       `json:"rank_lost,omitempty"`
	Memory     *memoryDetail     `json:"memory,omitempty"`
}

// divergenceDetail describes how ranks differ in their calls, or in a pool's history of allocations
// and frees.
type divergenceDetail struct {
	Group    string `json:"group"`
	Kind     string `json:"kind"` // a symmem.DivergenceKind or one of the kinds below
	Members  []int  `json:"members,omitempty"`
	Pool     uint64 `json:"pool"` // the pool's id, or 0
	PoolName string `json:"pool_name,omitempty"`
	// The first event that differs is between Position and Last in the pool's history. For
	// kindMessages, both are the number of the collective that found the mismatch, or 0.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last"`
	// Deviant lists the ranks that differ from the majority or, for kindCall, from this rank.
	Deviant  []int                `json:"deviant"`
	Absent   []int                `json:"absent"` // they did not take part
	Why      string               `json:"why"`
	Variants []variantDetail      `json:"variants"`
	Activity map[int]string       `json:"elsewhere,omitempty"` // in a deadlock
	Messages []symmem.MessageEnds `json:"messages,omitempty"`  // those that do not match
}

// More values of divergenceDetail.Kind.
const (
	kindCall     = "call"     // ranks made different calls
	kindDeadlock = "place"    // ranks wait in calls for each other
	kindMessages = "messages" // sends and receives do not match
)

// variantDetail describes an event, and lists the ranks with this event.
type variantDetail struct {
	Ranks  []int    `json:"ranks"`
	Event  string   `json:"event"`
	Site   string   `json:"site"`
	Before []string `json:"before,omitempty"` // earlier events
}

type timeoutDetail struct {
	InCall   string         `json:"doing"` // the call that timed out
	WaitedMS int64          `json:"waited_ms"`
	Missing  []int          `json:"missing"`
	Activity map[int]string `json:"activity"` // current calls of missing ranks, if known
	// Counts describes how NCCL's operation counts differ between ranks. It is empty if they do not.
	Counts      string `json:"counts,omitempty"`
	NeverJoined bool   `json:"absent,omitempty"` // Missing did not join a new world or group
}

type lostDetail struct {
	InCall string `json:"doing"`
	Ranks  []int  `json:"ranks"`
}

type memoryDetail struct {
	RequestedBytes int64 `json:"requested"`
}

// Detail returns an errorDetail as JSON. code is CodeOf(err).
func Detail(code Code, err error) string {
	d := errorDetail{Code: int(code), Name: code.String(), Message: code.Message(err)}
	d.addTypeDetail(err)
	text, jsonErr := json.Marshal(d)
	if jsonErr != nil {
		return "{}" // cannot happen: every field has a JSON representation
	}

	return string(text)
}

// addTypeDetail sets the field for the type of the error.
func (d *errorDetail) addTypeDetail(err error) {
	var divergence *symmem.DivergenceError
	var mismatch *symmem.MismatchError
	var deadlock *symmem.DeadlockError
	var messages *symmem.MessageError
	var rankLost *symmem.RankLostError
	var timeout *symmem.TimeoutError
	var outOfMemory *symmem.OutOfMemoryError
	switch {
	case errors.As(err, &divergence):
		d.Divergence = divergenceOf(divergence)
	case errors.As(err, &mismatch):
		d.Divergence = newDivergence(kindCall)
		d.Divergence.Group = mismatch.Group
		d.Divergence.Deviant = nonNilCopy(mismatch.Others)
	case errors.As(err, &deadlock):
		d.Divergence = newDivergence(kindDeadlock)
		d.Divergence.Activity = deadlock.Activity
	case errors.As(err, &messages):
		d.Divergence = messageDivergenceOf(messages)
	case errors.As(err, &rankLost):
		d.RankLost = &lostDetail{InCall: rankLost.InCall, Ranks: nonNilCopy(rankLost.Ranks)}
	case errors.As(err, &timeout):
		d.Timeout = timeoutDetailOf(timeout)
		d.Timeout.NeverJoined = errors.As(err, new(*symmem.AbsentError))
	case errors.As(err, &outOfMemory):
		d.Memory = &memoryDetail{RequestedBytes: outOfMemory.Requested}
	}
}

func timeoutDetailOf(e *symmem.TimeoutError) *timeoutDetail {
	return &timeoutDetail{
		InCall: e.InCall, WaitedMS: e.Waited.Milliseconds(), Missing: nonNilCopy(e.Missing),
		Activity: e.Activity, Counts: e.Counts,
	}
}

func divergenceOf(e *symmem.DivergenceError) *divergenceDetail {
	d := &divergenceDetail{
		Group: e.Group, Kind: string(e.Kind), Pool: e.PoolID, PoolName: e.Pool,
		Position: e.Position,
		Last:     max(e.Position, e.Last), // Last is 0 if Position is exact
		Why:      e.Why,
		Deviant:  nonNilCopy(e.Deviant), Absent: nonNilCopy(e.Absent),
		Members: nonNilCopy(e.Members),
	}
	for _, side := range e.Sides {
		d.Variants = append(d.Variants, variantDetail{
			Ranks: side.Ranks, Event: side.Event, Site: side.Site, Before: side.Before,
		})
	}

	return d
}

func messageDivergenceOf(e *symmem.MessageError) *divergenceDetail {
	d := newDivergence(kindMessages)
	d.Group = e.Group
	d.Position = e.Number
	d.Last = e.Number
	d.Why = string(e.Fault)
	d.Messages = e.Ends
	return d
}

func newDivergence(kind string) *divergenceDetail {
	return &divergenceDetail{
		Kind: kind, Deviant: []int{}, Absent: []int{}, Variants: []variantDetail{},
	}
}

// nonNilCopy copies a list. It converts nil, which JSON shows as null, to an empty list.
func nonNilCopy(list []int) []int { return append([]int{}, list...) }
