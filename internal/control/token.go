package control

import (
	"context"
	"crypto/rand"
	"fmt"

	"symmem/driver"
)

// ShareToken fills token with a secret that all ranks share. The rank on which leads is set
// generates the secret and puts it into the store, and the others read it from there.
func ShareToken(
	ctx context.Context, store driver.Store, key string, leads bool, token []byte,
) error {
	if leads {
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
