package agreement

import (
	"context"
	"fmt"
)

// Exchange contributes a payload to a round and returns those of all ranks, by rank. A nil entry
// stands for a rank that did not come; its own entry is never nil. It must honour the deadline of
// ctx. The payloads are read only, until the next call.
type Exchange func(ctx context.Context, payload []byte) ([][]byte, error)

// Run takes m through its rounds over an exchange. The error is about the exchange itself; that
// ranks differ is in the outcome.
func Run(ctx context.Context, exchange Exchange, m *Machine) (*Outcome, error) {
	payload := m.Start()
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("agreeing in round %d: %w", m.round, err)
		}
		payloads, err := exchange(ctx, payload)
		if err != nil {
			return nil, fmt.Errorf("exchanging round %d: %w", m.round, err)
		}
		summary, err := Merge(payloads)
		if err != nil {
			return nil, fmt.Errorf("merging round %d: %w", m.round, err)
		}
		next, outcome, err := m.Step(summary)
		if err != nil || outcome != nil {
			return outcome, err
		}
		payload = next
	}
}
