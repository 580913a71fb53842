"""Nothing crosses a segment: attention, convolution and SSM state stay at home."""

from __future__ import annotations

import torch

from openrecipes.engine.batch import Batch, Segments
from openrecipes.engine.model import NemotronH

from .conftest import Oracle, random_batch, relative

DOCUMENTS = (70, 1, 2, 130, 64, 33)


def piece(batch: Batch, index: int) -> Batch:
    lengths = list(batch.segment_lengths)
    ids = batch.input_ids.split(lengths, 1)[index]
    mask = batch.loss_mask.split(lengths, 1)[index]
    return Batch(ids, mask, (lengths[index],), (lengths[index],))


def gradients(model: NemotronH) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def test_packed_loss_and_gradients_are_those_of_the_documents_alone(oracle: Oracle) -> None:
    model = oracle.ours()
    batch = random_batch(96, DOCUMENTS, rows=(300,))
    packed, tokens = model(batch)
    packed.backward()
    expected = gradients(model)
    total, count = torch.zeros(()), 0
    for index in range(len(DOCUMENTS)):
        loss, supervised = model(piece(batch, index))
        loss.backward()
        total, count = total + loss.detach(), count + int(supervised)
    assert count == tokens
    assert relative(packed, total) < 1e-6
    for name, found in gradients(model).items():
        assert relative(found, expected[name]) < 5e-5, name


def test_perturbing_one_document_changes_no_other(oracle: Oracle) -> None:
    model = oracle.ours()
    batch = random_batch(96, DOCUMENTS, rows=(300,))
    before = model.logits(batch)[0]
    start, stop = sum(DOCUMENTS[:3]), sum(DOCUMENTS[:4])
    ids = batch.input_ids.clone()
    ids[0, start:stop] = (ids[0, start:stop] + 7) % 96
    after = model.logits(Batch(ids, batch.loss_mask, DOCUMENTS, (300,)))[0]
    changed = (before != after).any(-1)
    assert changed[start:stop].any()
    # Experts and matrix products gather the same numbers at other places: rounding only.
    others = torch.cat([torch.arange(start), torch.arange(stop, 300)])
    assert relative(after[others], before[others]) < 1e-5


def test_a_huge_document_leaves_its_neighbours_untouched(oracle: Oracle) -> None:
    """A border that only subtracts what crossed it would be left with its rounding."""
    from openrecipes.engine.model.convolution import CausalConvolution
    from openrecipes.engine.model.ssd import ssd

    segments = Segments.of([50, 50])
    convolution = CausalConvolution(6, 4, True)
    torch.nn.init.normal_(convolution.weight)
    x = torch.randn(100, 6)
    loud = torch.cat([x[:50] * 1e8, x[50:]])
    assert torch.equal(convolution(x, segments)[50:], convolution(loud, segments)[50:])

    dt, decay = torch.rand(100, 2), -torch.rand(2)
    b, c = torch.randn(100, 1, 8), torch.randn(100, 1, 8)
    arguments = (dt, decay, b, c, torch.ones(2), segments.ids, 16)
    quiet_y = ssd(x.view(100, 2, 3), *arguments)
    loud_y = ssd(loud.view(100, 2, 3), *arguments)
    assert torch.equal(quiet_y[50:], loud_y[50:])


def test_the_future_is_not_seen(oracle: Oracle) -> None:
    model = oracle.ours()
    batch = random_batch(96, (200,))
    ids = batch.input_ids.clone()
    ids[0, 150:] = 0
    changed = model.logits(Batch(ids, batch.loss_mask, (200,), (200,)))[0, :150]
    assert relative(changed, model.logits(batch)[0, :150]) < 1e-5
