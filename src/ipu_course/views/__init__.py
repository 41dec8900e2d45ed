"""The former place of ``call_parts`` and ``epoch_parts``, until no lesson imports from here."""
