package rendezvous

import "testing"

func TestServedByIsSameForPrefixedClient(t *testing.T) {
	c := NewLocal()
	defer c.Close()
	for _, rank := range []int{-1, 0, 3} {
		c.serverRankPlus1 = rank + 1
		view := WithPrefix(WithPrefix(c, "a"), "b")
		if got := view.ServedBy(); got != rank {
			t.Errorf("ServedBy() = %d, want %d", got, rank)
		}
	}
}
