package rendezvous

import "slices"

// wait makes a client wait unless all keys are set.
func (t *table) wait(from clientID, keys []string) error {
	if t.waiting[from] != nil {
		return errTwoWaits
	}
	w := &waiter{client: from, missing: map[string]bool{}}
	for _, key := range keys {
		if t.lacks(key) && !w.missing[key] {
			w.missing[key] = true
			t.watched[key] = append(t.watched[key], w)
		}
	}
	if len(w.missing) == 0 {
		t.answer(from, []byte{replyStop})
		return nil
	}
	t.waiting[from] = w
	return nil
}

// wakeWaiters wakes all clients that wait for key.
func (t *table) wakeWaiters(key string) {
	watching := t.watched[key]
	delete(t.watched, key)
	for _, w := range watching {
		t.removeMissing(w, key)
	}
}

// removeMissing ends the wait of w if key was the last missing key.
func (t *table) removeMissing(w *waiter, key string) {
	if delete(w.missing, key); len(w.missing) == 0 {
		delete(t.waiting, w.client)
		t.answer(w.client, []byte{replyStop})
	}
}

func (t *table) unwatch(w *waiter, key string) {
	left := slices.DeleteFunc(t.watched[key], func(x *waiter) bool { return x == w })
	if t.watched[key] = left; len(left) == 0 {
		delete(t.watched, key)
	}
}

// arrive counts an arrival at a barrier of world ranks, and releases all clients when it is full.
func (t *table) arrive(from clientID, key string, world int64) error {
	if t.waiting[from] != nil {
		return errTwoWaits
	}
	b := t.barriers[key]
	if b == nil {
		b = &barrier{}
		t.barriers[key] = b
	}
	b.arrived++
	b.held = append(b.held, from)
	t.waiting[from] = &waiter{client: from, barrier: b}
	if b.arrived < world {
		return nil
	}
	for _, client := range b.held {
		delete(t.waiting, client)
		t.answer(client, []byte{replyStop})
	}
	b.held = nil
	return nil
}

// leave ends the wait of a client that cancelled it or disconnected. An arrival at a barrier still
// counts.
func (t *table) leave(client clientID) {
	w := t.waiting[client]
	if w == nil {
		return
	}
	delete(t.waiting, client)
	for key := range w.missing {
		t.unwatch(w, key)
	}
	if w.barrier != nil {
		w.barrier.held = slices.DeleteFunc(w.barrier.held,
			func(c clientID) bool { return c == client })
	}
}
