package agreement

import (
	"context"
	"fmt"
)

// Exchange sends a payload to all ranks and returns theirs, by rank. Entries of absent ranks are
// nil, but this rank's entry never is. When ctx is done, the error lists the missing ranks. The
// payloads are valid until the next call and must not be modified.
type Exchange func(ctx context.Context, payload []byte) ([][]byte, error)

// Run runs all rounds of m. An error means a failed exchange or an invalid payload.
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
