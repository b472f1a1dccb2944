package binding

import (
	"encoding/json"
	"errors"

	"symmem"
)

// detail is encoded as the JSON that Detail returns.
type detail struct {
	Code       int               `json:"code"`
	Name       string            `json:"name"`
	Message    string            `json:"message"`
	Divergence *divergenceDetail `json:"divergence,omitempty"`
	Timeout    *timeoutDetail    `json:"timeout,omitempty"`
	RankLost   *lostDetail       `json:"rank_lost,omitempty"`
	Memory     *memoryDetail     `json:"memory,omitempty"`
}

type divergenceDetail struct {
	Group    string          `json:"group"`
	Kind     string          `json:"kind"`
	Members  []int           `json:"members,omitempty"`
	Pool     uint64          `json:"pool"`
	PoolName string          `json:"pool_name,omitempty"`
	Position uint64          `json:"position"`
	Last     uint64          `json:"last"`
	Deviant  []int           `json:"deviant"`
	Absent   []int           `json:"absent"`
	Why      string          `json:"why"`
	Variants []variantDetail `json:"variants"`
	// Activity says what each rank is calling, if the ranks wait for each other in different calls.
	Activity map[int]string `json:"elsewhere,omitempty"`
	// Messages lists the messages on which sender and receiver disagree. Why describes how.
	Messages []symmem.MessageEnds `json:"messages,omitempty"`
}

type variantDetail struct {
	Ranks  []int    `json:"ranks"`
	Event  string   `json:"event"`
	Site   string   `json:"site"`
	Before []string `json:"before,omitempty"`
}

type timeoutDetail struct {
	InCall   string         `json:"doing"`
	WaitedMS int64          `json:"waited_ms"`
	Missing  []int          `json:"missing"`
	Activity map[int]string `json:"activity"`
	// Counts holds NCCL's operation counts if they differ between ranks.
	Counts string `json:"counts,omitempty"`
	// Absent is set if the missing ranks never joined the group.
	Absent bool `json:"absent,omitempty"`
}

type lostDetail struct {
	InCall string `json:"doing"`
	Ranks  []int  `json:"ranks"`
}

type memoryDetail struct {
	Requested int64 `json:"requested"`
}

// Detail returns an error as JSON: its code, name, text and fields.
func Detail(code Code, err error) string {
	d := detail{Code: int(code), Name: code.String(), Message: code.Message(err)}
	d.fill(err)
	text, err := json.Marshal(d)
	if err != nil {
		return "{}"
	}
	return string(text)
}

func (d *detail) fill(err error) {
	var diverged *symmem.DivergenceError
	var mismatch *symmem.MismatchError
	var deadlock *symmem.DeadlockError
	var lost *symmem.RankLostError
	var late *symmem.TimeoutError
	var memory *symmem.OutOfMemoryError
	var messages *symmem.MessageError
	switch {
	case errors.As(err, &diverged):
		d.Divergence = divergenceOf(diverged)
	case errors.As(err, &mismatch):
		d.Divergence = divergenceWithoutVariants("call", mismatch.Group, nil)
		d.Divergence.Deviant = ranks(mismatch.Others)
	case errors.As(err, &deadlock):
		d.Divergence = divergenceWithoutVariants("place", "", deadlock.Activity)
	case errors.As(err, &messages):
		d.Divergence = divergenceWithoutVariants("messages", messages.Group, nil)
		d.Divergence.Position, d.Divergence.Last = messages.Number, messages.Number
		d.Divergence.Why, d.Divergence.Messages = string(messages.Fault), messages.Ends
	case errors.As(err, &lost):
		d.RankLost = &lostDetail{InCall: lost.InCall, Ranks: ranks(lost.Ranks)}
	case errors.As(err, &late):
		d.Timeout = &timeoutDetail{
			InCall: late.InCall, WaitedMS: late.Waited.Milliseconds(), Missing: ranks(late.Missing),
			Activity: late.Activity, Counts: late.Counts,
			Absent: errors.As(err, new(*symmem.AbsentError)),
		}
	case errors.As(err, &memory):
		d.Memory = &memoryDetail{Requested: memory.Requested}
	}
}

// divergenceWithoutVariants describes a divergence if it is not known what each rank did.
func divergenceWithoutVariants(
	kind, group string, activity map[int]string,
) *divergenceDetail {
	return &divergenceDetail{
		Group: group, Kind: kind, Activity: activity, Deviant: []int{}, Absent: []int{},
		Variants: []variantDetail{},
	}
}

func divergenceOf(e *symmem.DivergenceError) *divergenceDetail {
	d := &divergenceDetail{
		Group: e.Group, Kind: string(e.Kind), Pool: e.PoolID, PoolName: e.Pool,
		Position: e.Position, Last: max(e.Position, e.Last), Why: e.Why,
		Deviant: ranks(e.Deviant), Absent: ranks(e.Absent), Members: ranks(e.Members),
	}
	for _, side := range e.Sides {
		d.Variants = append(d.Variants, variantDetail(side))
	}
	return d
}

// ranks returns a copy of list that is never nil, because JSON encodes nil as null.
func ranks(list []int) []int { return append([]int{}, list...) }
