package control

import (
	"context"
	"crypto/rand"
	"fmt"

	"symmem/driver"
)

// ShareToken fills token with a secret that all ranks share through the store. The rank that sets
// isCreator generates it.
func ShareToken(
	ctx context.Context, store driver.Store, key string, isCreator bool, token []byte,
) error {
	if isCreator {
		rand.Read(token)
		return store.Set(ctx, key, token)
	}

	got, err := store.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("fetching the token: %w", err)
	}

	if len(got) != len(token) {
		return fmt.Errorf("the token has %d bytes instead of %d: another program has stored it",
			len(got), len(token))
	}

	copy(token, got)
	return nil
}
