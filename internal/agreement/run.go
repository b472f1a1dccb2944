package agreement

import (
	"context"
	"fmt"
)

// Exchange contributes a payload to a round and returns all ranks' payloads, indexed by rank.
// Entries of ranks that did not take part are nil, but this rank's own entry never is. When ctx is
// done, an Exchange returns an error that lists the missing ranks. The payloads are valid until the
// next call, and the caller must not modify them.
type Exchange func(ctx context.Context, payload []byte) ([][]byte, error)

// Run runs all rounds of m. The Outcome reports differences between ranks. An error means that an
// exchange failed or a payload was invalid.
func Run(ctx context.Context, exchange Exchange, m *Machine) (*Outcome, error) {
	payload := m.Start()
	for {
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
